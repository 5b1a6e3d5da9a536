"""The gateway in detailed mode: the real admission, router, registry and prober in front of simulated servers.

Only the exchange of bytes is replaced: a request is handed to an `EngineServer`, and what comes back is counted as the
real relay counts it.
"""

import asyncio
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

from headrace.bench.simulate.counted_queue import LANE, ticket_of
from headrace.bench.simulate.engine_server import EngineServer, Stream
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.prompts import prompt_ids
from headrace.bench.simulate.scaling import Autoscaler
from headrace.bench.simulate.tally import Tally
from headrace.bench.trace import TraceRow
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.core.stats import ReplicaState
from headrace.fleet.autoscaler.gather import QueueLook
from headrace.fleet.autoscaler.traffic import Ended
from headrace.fleet.gateway.attempts import Attempts, RetryBudget
from headrace.fleet.gateway.build import make_replica
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.models.needs import Suitable
from headrace.fleet.gateway.prefix.knowledge import BY_PREFIX, Knowledge
from headrace.fleet.gateway.router import Choice, Router, Wanted
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.prober import Prober
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica, Report
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

MODEL = "model"


class SimulatedGateway:
    """One gateway, one model. Lives on a virtual loop."""

    def __init__(self, config: FleetConfig, profile: Profile, clock: Clock, rng: Random) -> None:
        self.config = config
        self.clock = clock
        self.servers: dict[str, EngineServer] = {}
        """By replica; whoever starts and stops them puts them here."""
        self.autoscaler: Autoscaler | None = None
        self._waiting: dict[int, float] = {}
        self._profile = profile
        self._numbers = count()
        self._budget = RetryBudget(config.gateway.retries.budget)
        self.registry = Registry(config.health, clock, lambda spec: make_replica(config, spec))
        self._knowledge = Knowledge(config.routing, self.registry, clock)
        self.router = Router(self.registry, config, clock, choose, self._knowledge, draw=rng.random)
        self.prober = Prober(self.registry, clock, self._probe, draw=rng.random)
        self.prober.on_restart = lambda replica: self._knowledge.index.restarted(replica.id)
        self.admission = Admission(config.flow, clock, self.router.free_in_lane, draw=rng.random)
        self.registry.on_change = self._on_change

    def reconcile(self, specs: Sequence[ReplicaSpec]) -> None:
        """Exactly these replicas are there."""
        self.registry.reconcile(specs)

    async def close(self) -> None:
        """Stop looking at replicas."""
        self.admission.close()
        await self.prober.close()
        await self._knowledge.close()

    async def serve(self, row: TraceRow, block_tokens: int, tally: Tally) -> None:
        """One request from its arrival to its end."""
        number = next(self._numbers)
        call = _Call(row, prompt_ids(row, block_tokens, number))
        wanted = self._wanted(call)
        self.router.check(wanted)
        ticket = ticket_of(number, row.input_tokens, row.output_tokens, self.config.flow)
        self._budget.note_request(self.clock.monotonic())
        if self.autoscaler is not None:
            traffic = self.autoscaler.sums.traffic
            traffic.arrived(row.at, row.input_tokens, row.output_tokens)
        self._waiting[id(call)] = row.at
        try:
            async with self.admission.enter(ticket) as slot:
                del self._waiting[id(call)]
                await self._answered(call, wanted, slot)
        except HeadraceError as error:
            self._waiting.pop(id(call), None)
            tally.failed(type(error).__name__)
            return
        self._tell(call)
        tally.cached_tokens += call.num_cached
        end = self.clock.monotonic() + self._profile.request_seconds
        first = call.first + self._profile.request_seconds
        tally.answered(row.at, first, end, row.input_tokens, call.num_tokens)

    def queue_look(self) -> QueueLook:
        """What waits here."""
        oldest = next(iter(self._waiting.values()), None)
        wait = None if oldest is None else self.clock.monotonic() - oldest
        return QueueLook(self.admission.waiting.num_requests, wait)

    def _tell(self, call: "_Call") -> None:
        """The autoscaler hears of an answer."""
        autoscaler, row, now = self.autoscaler, call.row, self.clock.monotonic()
        if autoscaler is None:
            return
        request = Ended(
            arrival=row.at,
            prompt_tokens=row.input_tokens - call.num_cached,
            output_tokens=call.num_tokens,
            asked_prompt=row.input_tokens,
            asked_output=row.output_tokens,
            ttft=call.first - row.at,
            latency=now - row.at,
            is_sample=row.at >= call.ready_since + autoscaler.warmup,
        )
        autoscaler.ended(now, request)

    def _wanted(self, call: "_Call") -> Wanted:
        row = call.row
        prompt = None
        if self.config.routing.policy in BY_PREFIX:
            body: dict[str, Any] = {"prompt": call.prompt_ids}
            prompt = self.router.index.read(body, model=MODEL, salt="", num_tokens=row.input_tokens)
        return Wanted(
            model=MODEL,
            lane=LANE,
            prompt_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            session="",
            salt="",
            suited=Suitable,
            prompt=prompt,
        )

    async def _answered(self, call: "_Call", wanted: Wanted, slot: Slot) -> None:
        """Tried at replicas until it is whole; what one that ended had made is gone on with."""
        attempts = Attempts(self.config.gateway.retries, self._budget)
        while call.num_tokens < call.row.output_tokens:
            choice = await self._choose(wanted, attempts)
            try:
                await self._try(call, wanted, choice, slot)
            except UpstreamError as failure:
                self._blame(choice.replica, failure)
                if call.num_tokens:
                    attempts.note_break(failure)
                else:
                    attempts.note_failure(failure, self.clock.monotonic())
        slot.used(
            prompt_tokens=call.row.input_tokens - call.num_cached, output_tokens=call.num_tokens
        )

    async def _choose(self, wanted: Wanted, attempts: Attempts) -> Choice:
        """As the dispatcher: patient while no replica is ready."""
        deadline = self.clock.monotonic() + self.config.gateway.retries.patience
        while (choice := self.router.pick(wanted, attempts.tried)) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.router.wait_change()
            except TimeoutError:
                raise UnavailableError("No replica serves the model at the moment.") from None
        if choice.replica.id in attempts.tried:
            await asyncio.sleep(attempts.backoff())
        return choice

    async def _try(self, call: "_Call", wanted: Wanted, choice: Choice, slot: Slot) -> None:
        replica, row = choice.replica, call.row
        ahead = replica.load.prefill_tokens
        missing = max(0, row.input_tokens - choice.decision.cached_tokens)
        with replica.lease(prefill_tokens=missing, decode_tokens=row.output_tokens) as lease:
            slot.placed()
            began = self.clock.monotonic()
            is_first = True

            def on_tokens(new: int) -> None:
                nonlocal is_first
                now = self.clock.monotonic()
                if is_first:
                    is_first = False
                    lease.note_first_token()
                    replica.latency.note_first_token(now - began, ahead + missing)
                    replica.latency.note_prefill(began, now, missing)
                if not call.num_tokens:
                    call.first = now
                call.num_tokens += new
                lease.note_tokens(new)

            stream = Stream(on_tokens)
            self._server(replica).submit(call.request(), stream)
            await stream.end()
            call.num_cached = stream.num_cached
            call.ready_since = replica.ready_since or 0.0
            seconds = self.clock.monotonic() - call.first
            replica.latency.note_output(seconds, call.num_tokens - 1)
            replica.breaker.note_success()
        self.router.note_answered(wanted, replica)

    def _server(self, replica: Replica) -> EngineServer:
        server = self.servers.get(replica.id)
        if server is None:
            raise UpstreamError(FailureKind.CONNECT, "nobody listens")
        return server

    def _blame(self, replica: Replica, failure: UpstreamError) -> None:
        failure.replica_id = replica.id
        replica.breaker.note_failure(self.clock.monotonic())
        if failure.kind is FailureKind.CONNECT:
            self.prober.note_unreachable(replica, str(failure))
        else:
            self.prober.look_now(replica)

    async def _probe(self, replica: Replica, patience: float, number: int) -> Report:
        server = self._server(replica)
        if not server.is_alive:
            raise UpstreamError(FailureKind.CONNECT, "nobody listens")
        stats = server.stats()
        used = stats.blocks_total - stats.blocks_free
        return Report(
            state=ReplicaState.READY,
            models=(MODEL,),
            max_context=self._profile.max_context,
            num_running=stats.num_running,
            num_waiting=server.num_waiting,
            max_num_seqs=server.max_num_seqs,
            outstanding_tokens=stats.running_tokens + stats.waiting_tokens,
            kv_usage=used / max(1, stats.blocks_total),
            uptime=self.clock.monotonic() - server.started,
        )

    def _on_change(self) -> None:
        self.prober.sync()
        self.router.note_change()
        self.admission.wake()


class _Call:
    """A request and what has come of it."""

    __slots__ = (
        "first",
        "num_cached",
        "num_tokens",
        "num_tries",
        "prompt_ids",
        "ready_since",
        "row",
    )

    def __init__(self, row: TraceRow, prompt_ids: list[int]) -> None:
        self.row = row
        self.prompt_ids = prompt_ids
        self.first = 0.0
        self.num_tokens = 0
        self.num_cached = 0
        self.num_tries = 0
        self.ready_since = 0.0
        """Of the replica that answered."""

    def request(self) -> Request:
        """As the next replica gets it: after a break it goes on from the tokens that came."""
        self.num_tries += 1
        return Request(
            request_id=f"{self.prompt_ids[-1]}-{self.num_tries}",
            prompt=(TokenSegment(self.prompt_ids),),
            params=SamplingParams(
                temperature=0.0, max_tokens=self.row.output_tokens, ignore_eos=True
            ),
            prior_output_ids=[1] * self.num_tokens,
        )
