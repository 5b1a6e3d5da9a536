"""The gateway's queue in fleet mode: production's lane, room and fair shares, without its event loop."""

from collections.abc import Iterator
from itertools import count
from random import Random

from headrace.bench.simulate.counted_replica import Job
from headrace.config.fleet.flow import FlowConfig
from headrace.core.errors import HeadraceError, NoReplicaError, QueueTimeoutError
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.room import Room
from headrace.fleet.gateway.flow.values import Ticket, Waiter

LANE = "model"
#: Requests come from so many tenants in turn, in both modes.
NUM_TENANTS = 64


def ticket_of(number: int, prompt_tokens: int, output_tokens: int, config: FlowConfig) -> Ticket:
    """The `number`-th request, as flow control sees it."""
    return Ticket(
        lane=LANE,
        tenant=f"tenant-{number % NUM_TENANTS}",
        priority=config.usual_class,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


class CountedQueue:
    """Who waits, in which order they go, and who is sent away."""

    def __init__(self, config: FlowConfig, rng: Random) -> None:
        self._config = config
        self._lane = Lane(config)
        self._room = Room(config, {LANE: self._lane}, rng.random)
        self._numbers = count()
        self._jobs: dict[Waiter, Job] = {}
        self._tickets: dict[Job, Ticket] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def oldest(self) -> float | None:
        """When the one that has waited longest came; None: nobody waits."""
        first = next(iter(self._jobs), None)
        return None if first is None else first.arrived

    def push(self, job: Job, now: float, *, is_waiting: bool) -> str:
        """Let it in; `is_waiting`: it will not go at once. The name of the error if there is no room for it, else ''."""
        number = next(self._numbers)
        ticket = ticket_of(number, job.prompt_tokens, job.output_tokens, self._config)
        if is_waiting:
            try:
                self._room.make(ticket, now)
            except HeadraceError as error:
                return type(error).__name__
        waiter = Waiter(ticket, number=number, arrived=now, due=now)
        self._lane.push(waiter)
        self._room.total.add(ticket)
        self._jobs[waiter] = job
        self._tickets[job] = ticket
        return ""

    def pop(self, now: float) -> Job | None:
        """The one whose turn it is."""
        waiter = self._lane.pop()
        if waiter is None:
            return None
        self._lane.drain.note_start(now)
        self._room.total.remove(waiter.ticket)
        return self._jobs.pop(waiter)

    def ended(self, job: Job) -> None:
        """It was answered: its tenant's share is corrected by what it really took."""
        ticket = self._tickets.pop(job)
        real = self._lane.weighted(job.prompt_tokens - job.cached, job.output_tokens)
        self._lane.charge(ticket, real - self._lane.cost(ticket))

    def failed(self, job: Job) -> None:
        """It will not be answered."""
        self._tickets.pop(job, None)

    def late(self, now: float, *, is_ready: bool) -> Iterator[tuple[Job, str]]:
        """Those that have waited too long, which go, with the name of their error."""
        if not self._jobs:
            self._lane.cold_since = None
            return
        self._lane.note_readiness(is_ready, now)
        for waiter in [w for w in self._jobs if self._lane.limit(w) <= now]:
            self._lane.remove(waiter)
            self._room.total.remove(waiter.ticket)
            job = self._jobs.pop(waiter)
            self.failed(job)
            yield job, (QueueTimeoutError if is_ready else NoReplicaError).__name__
