"""A replica in detailed mode: the real engine, with its scheduler and ledger, on simulated time."""

import asyncio
from collections.abc import Callable
from hashlib import sha256

from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.timed_executor import OwnClock, TimedExecutor
from headrace.config.engine import SchedulerConfig
from headrace.core.events import TokenEvent
from headrace.core.request import Request
from headrace.core.stats import EngineStats
from headrace.engine.engine import Engine
from headrace.engine.memory.hashing import RootKey
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Seconds after which an engine that has work, and no plan for it, is asked again.
_ASK_AGAIN = 0.001


class Stream:
    """One request's answer, as it comes. Times are simulated seconds."""

    __slots__ = ("_listener", "_over", "num_cached", "num_tokens")

    def __init__(self, listener: Callable[[int], None]) -> None:
        """`listener` is told of so many new tokens when they come."""
        self._listener = listener
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.num_tokens = 0
        self.num_cached = 0

    def feed(self, event: TokenEvent) -> None:
        """An event of the engine."""
        if self.num_tokens == 0:
            self.num_cached = event.num_cached_tokens
        if event.token_ids:
            self.num_tokens += len(event.token_ids)
            self._listener(len(event.token_ids))
        if event.finish is not None and not self._over.done():
            if event.error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(UpstreamError(FailureKind.STATUS, event.error))

    def cut(self) -> None:
        """The connection is gone."""
        if not self._over.done():
            self._over.set_exception(UpstreamError(FailureKind.CUT, "the replica has ended"))

    async def end(self) -> None:
        """Until all of it is there. Raises UpstreamError."""
        await self._over


class EngineServer:
    """One server process: takes requests between steps, as the real loop does."""

    def __init__(self, profile: Profile, scheduler: SchedulerConfig | None = None) -> None:
        config = scheduler or scheduler_config(profile)
        self._clock = OwnClock()
        self._engine = _engine(profile, config, self._clock)
        self._loop = asyncio.get_running_loop()
        self._inbox: list[Request] = []
        self._streams: dict[str, Stream] = {}
        self._is_stepping = False
        self.is_alive = True
        self.max_num_seqs = config.max_num_seqs
        self.started = self._loop.time()
        self.busy_seconds = 0.0
        """Time spent inside steps."""

    def submit(self, request: Request, stream: Stream) -> None:
        """Take a request in; `stream` is fed its events. Raises UpstreamError if nobody is there."""
        if not self.is_alive:
            raise UpstreamError(FailureKind.CONNECT, "nobody listens")
        self._streams[request.request_id] = stream
        self._inbox.append(request)
        if not self._is_stepping:
            self._is_stepping = True
            self._loop.call_soon(self._turn)

    def stats(self) -> EngineStats:
        """Gauges and totals; requests that are not taken in yet wait."""
        return self._engine.stats()

    @property
    def num_waiting(self) -> int:
        """Requests that no step has begun."""
        return self._engine.stats().num_waiting + len(self._inbox)

    @property
    def num_requests(self) -> int:
        """What it has to do."""
        return len(self._streams)

    @property
    def is_idle(self) -> bool:
        """It has nothing to do."""
        return not self._streams

    def kill(self) -> None:
        """It ends at once, in the middle of whatever it does."""
        self.is_alive = False
        for stream in self._streams.values():
            stream.cut()
        self._streams.clear()
        self._inbox.clear()

    def _turn(self) -> None:
        """Between two steps: take in what came, and run the next step."""
        self._clock.now = max(self._clock.now, self._loop.time())
        inbox, self._inbox = self._inbox, []
        for request in inbox:
            self._deliver(self._engine.add(request))
        if not self._engine.has_work():
            self._is_stepping = False
            return
        began = self._clock.now
        events = self._engine.step()
        self.busy_seconds += self._clock.now - began
        if self._clock.now == began and not events:
            wake = self._engine.wake_at()
            self._clock.now = max(began + _ASK_AGAIN, wake or 0.0)
        self._loop.call_at(self._clock.now, self._step_ended, events)

    def _step_ended(self, events: list[TokenEvent]) -> None:
        if self.is_alive:
            self._deliver(events)
            self._turn()

    def _deliver(self, events: list[TokenEvent]) -> None:
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            if event.finish is not None:
                del self._streams[event.request_id]
            stream.feed(event)


def scheduler_config(profile: Profile) -> SchedulerConfig:
    """As the server was run that the profile is of."""
    return SchedulerConfig(
        max_num_seqs=profile.max_num_seqs, max_num_batched_tokens=profile.max_num_batched_tokens
    )


def _engine(profile: Profile, config: SchedulerConfig, clock: OwnClock) -> Engine:
    name = sha256(profile.model.encode()).digest()
    ledger = KVLedger(
        (profile.kv_blocks,),
        profile.block_size,
        (0,),
        key=RootKey(weights_digest=name, model_digest=name, kv_format="f16"),
        max_uncommitted_tokens=config.max_num_batched_tokens * config.max_uncommitted_plans,
    )
    scheduler = Scheduler(config, ledger, max_context=profile.max_context)
    return Engine(scheduler, TimedExecutor(profile.step, clock), clock)
