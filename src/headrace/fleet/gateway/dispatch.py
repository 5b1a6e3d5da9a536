"""One admitted request: tried at one replica after another until its client has its answer.

Before the first byte any replica may take over, and the client does not notice. After it, another replica goes on from
the tokens that were sent; if none can, the stream ends with an error event. Nothing is ever sent twice.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from headrace.config.fleet.gateway import GatewayConfig, RetryConfig
from headrace.config.fleet.replicas import Dialect
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.fleet.backends import values as wire
from headrace.fleet.gateway import replica_meter
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.attempts import Attempts, RetryBudget
from headrace.fleet.gateway.call import Call, patched
from headrace.fleet.gateway.endpoints import Kind
from headrace.fleet.gateway.exchange import Exchange, RefusedError, UnfitError
from headrace.fleet.gateway.hedging import hedged
from headrace.fleet.gateway.limit import Limit, earlier, within
from headrace.fleet.gateway.pace import Pace
from headrace.fleet.gateway.progress import AnswerUsage, Progress
from headrace.fleet.gateway.pulse import Pulse
from headrace.fleet.gateway.replica_meter import ReplicaMeter
from headrace.fleet.gateway.router import Choice, Router, Wanted
from headrace.fleet.gateway.spans import begin_attempt, tell_choice
from headrace.fleet.gateway.trip import MAX_TRIES, Try
from headrace.fleet.prober import Prober
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

log = logging.getLogger("headrace.fleet")

#: Failures that say nothing against a replica's health.
_BLAMELESS = frozenset({FailureKind.OVERLOADED, FailureKind.REFUSED, FailureKind.MODEL})
#: Dialects that keep prefix caches apart by `cache_salt`; others may refuse a field that they do not know.
_SALTING = frozenset({Dialect.HEADRACE, Dialect.VLLM, Dialect.SGLANG})

#: For copies, which nobody waits for: what becomes of them must cost those that somebody waits for nothing.
_ONE_TRY = RetryConfig(attempts=1, resume_attempts=0, patience=0.0, budget=0.0)


class Dispatcher:
    """Makes dispatches; what they share."""

    def __init__(
        self,
        router: Router,
        prober: Prober,
        meter: ReplicaMeter,
        config: GatewayConfig,
        clock: Clock,
        new_pace: Callable[[], Pace | None] = lambda: None,
        pulse: Pulse | None = None,
    ) -> None:
        """`new_pace` makes what times a stream."""
        self.meter = meter
        self.new_pace = new_pace
        self.pulse = pulse or Pulse()
        self.router = router
        self.prober = prober
        self.config = config
        self.clock = clock
        self.budget = RetryBudget(config.retries.budget)

    def apply(self, config: GatewayConfig) -> None:
        """From the next request on."""
        self.config = config
        self.budget.share = config.retries.budget

    def dispatch(self, call: Call, wanted: Wanted, answer: Answer) -> "Dispatch":
        """One request, ready to run."""
        terms = Terms(self.config.retries, self.budget, self.pulse)
        return Dispatch(self, call, wanted, answer, terms)

    def copy(self, call: Call, wanted: Wanted, answer: Answer) -> "Dispatch":
        """A copy of one: tried once, and counted neither with clients' tokens nor with their requests and retries."""
        return Dispatch(self, call, wanted, answer, Terms(_ONE_TRY, RetryBudget(0.0), Pulse()))


class Terms(NamedTuple):
    """How often one is tried, and with whom it counts."""

    retries: RetryConfig
    budget: RetryBudget
    pulse: Pulse


class Dispatch:
    """One request's way through replicas. Run it once."""

    def __init__(
        self, shared: Dispatcher, call: Call, wanted: Wanted, answer: Answer, terms: Terms
    ) -> None:
        self._shared = shared
        self._terms = terms
        self._call = call
        self._wanted = wanted
        self._answer = answer
        self._on_lease: Callable[[], None] = _nothing
        self._attempts = Attempts(terms.retries, terms.budget)
        self._adds_usage = call.is_stream and call.endpoint.can_resume and not call.wants_usage
        self._created = int(shared.clock.wall())
        self._doubted: list[Replica] = []
        """Those that failed it, perhaps through its own fault."""
        self._unfit: set[str] = set()
        """Replicas whose dialect has no words for the request."""
        self.progress = Progress()
        self.replica: Replica | None = None
        """Where the answer came from last."""
        self.tries: list[Try] = []
        """Replicas that were asked, in the order in which they were done."""

    async def run(self, on_lease: Callable[[], None]) -> None:
        """Have it answered; `on_lease` is called whenever it counts at a replica.

        Raises HeadraceError before the first byte, and RefusedError for what replicas call wrong.
        """
        self._on_lease = on_lease
        shared = self._shared
        seconds = shared.config.timeouts.total
        now = shared.clock.monotonic()
        self._terms.budget.note_request(now)
        limit = Limit(now + seconds, f"The request was not answered in {seconds:g} s.")
        try:
            await within(earlier(limit, self._call.limit), self._run(), now)
        except HeadraceError as error:
            await self._give_up(error)
        finally:
            for replica in self._doubted:  # nobody has shown that it can be answered
                self._hold_against(replica, hash(self._call.raw))
            self._on_lease = _nothing  # it leads back to us: a circle would leave all of a request to the collector

    async def _run(self) -> None:
        """Until the answer is complete. Raises HeadraceError for what cannot be mended."""
        clock, trace = self._shared.clock, self._call.trace
        started = 0.0 if trace is None else clock.monotonic()
        self._wanted = await self._shared.router.informed(self._wanted, self._call.body)
        while True:
            choice = await self._choose()
            if trace is not None:
                tell_choice(trace, choice, started, clock.monotonic())
            try:
                await self._try_hedged(choice)
                if self.replica is not None:
                    self._shared.router.note_answered(self._wanted, self.replica)
                return
            except UpstreamError as failure:
                if self._answer.has_begun and self._is_all_there():
                    await self._end_well()
                    return
                self._go_on_after(failure)
                started = clock.monotonic() if trace is not None else 0.0

    def _is_all_there(self) -> bool:
        """Every token of the answer has come; only how it ends may be missing."""
        progress, call = self.progress, self._call
        if not call.endpoint.can_resume:
            return False
        # One that is gone on with by text is asked for what is left, which cannot be nothing.
        is_full = call.is_single and progress.keeps_text and 0 < call.bound <= progress.num_tokens
        return len(progress.finished) >= call.num_choices or is_full

    async def _end_well(self) -> None:
        """Tell what a stream lacks that has all its tokens. What it has cost is estimated, as in the books."""
        progress, call = self.progress, self._call
        usage = progress.usage or AnswerUsage(call.prompt_tokens, 0, progress.num_tokens)
        is_asked = call.wants_usage and progress.usage is None
        is_chat = call.endpoint.kind is Kind.CHAT
        await self._answer.write(
            progress.ending(self._wanted.model, is_chat, usage if is_asked else None)
        )
        await self._answer.end(usage)

    async def _give_up(self, error: HeadraceError) -> None:
        """Tell the client; raises `error` if it can still be told by a status."""
        if not self._answer.has_begun:
            raise error
        log.warning("A stream broke off: %s", error)
        path, num_events = self._call.endpoint.path, self.progress.num_events
        await self._answer.break_off(error, path, num_events)

    async def _choose(self) -> Choice:
        shared = self._shared
        deadline = shared.clock.monotonic() + self._terms.retries.patience
        tried = self._attempts.tried
        while True:
            choice = shared.router.pick(self._wanted_now(), tried)
            if choice is not None:
                if choice.replica.id in tried:
                    await asyncio.sleep(self._attempts.backoff())
                return choice
            left = deadline - shared.clock.monotonic()
            if left <= 0:
                raise UnavailableError(
                    f"No replica serves '{self._wanted.model}' at the moment.", retry_after=5.0
                )
            try:
                async with asyncio.timeout(left):
                    await shared.router.wait_change()
            except TimeoutError:
                continue

    async def _try_hedged(self, choice: Choice) -> None:
        after = self._terms.retries.hedge_after
        if after is None or self._answer.has_begun:
            await self._try(choice)
        else:
            await hedged(self._try(choice), lambda: self._hedge(choice), self._answer.begun, after)

    def _hedge(self, first: Choice) -> Coroutine[None, None, None] | None:
        """A second try beside one that has not begun; None if there is no other replica, or no budget."""
        now = self._shared.clock.monotonic()
        if not self._terms.budget.has_room(now):
            return None  # before a replica is picked: the one trial of a half-open circuit must not be spent on nothing
        avoided = {first.replica.id, *self._attempts.tried}
        choice = self._shared.router.pick(self._wanted_now(), avoided, is_needed=False)
        if choice is None or not self._terms.budget.take(now):
            return None
        return self._try(choice)

    async def _try(self, choice: Choice) -> None:
        """Raises UpstreamError, after the replica was blamed for it."""
        replica = choice.replica
        progress = self.progress
        if not self._answer.has_begun:
            pace = self._shared.new_pace() if self._call.is_stream else None
            progress = Progress(keeps_text=self._keeps_text(replica), pace=pace)
        clock = self._shared.clock
        started, outcome = clock.monotonic(), replica_meter.CANCELLED
        attempt = begin_attempt(self._call, started)
        exchange = Exchange(
            self._call, choice, self._shared.config, clock, self._terms.pulse, attempt
        )
        try:
            sent = self._sent_to(replica)
            if sent is None:
                raise UpstreamError(FailureKind.REFUSED, "it cannot go on with this answer")
            await exchange.run(
                sent,
                self._answer,
                progress,
                drops_usage=self._adds_usage,
                on_lease=self._on_lease,
            )
        except RefusedError:
            replica.breaker.note_success()
            self._doubted.clear()  # the request is at fault
            outcome = replica_meter.REFUSED
            raise
        except UnfitError:
            self._unfit.add(replica.id)
            outcome = replica_meter.REFUSED
            raise
        except UpstreamError as failure:
            outcome = replica_meter.outcome_of(failure.kind)
            failure.replica_id = replica.id
            self._blame(replica, failure)
            raise
        else:
            self._note_success(replica)
            outcome = replica_meter.OK
        finally:
            self._note_try(choice, outcome, started, exchange.ttft)
            if attempt is not None:
                attempt.end(self._call, choice, outcome, exchange.ttft, clock.monotonic())
            if self._answer.is_owned_by(progress):
                self.progress, self.replica = progress, replica

    def _note_success(self, replica: Replica) -> None:
        """It could be answered: those that failed it before did so through their own fault."""
        replica.breaker.note_success()
        while self._doubted:
            self._hold_against(self._doubted.pop())

    def _note_try(self, choice: Choice, outcome: str, started: float, ttft: float | None) -> None:
        seconds = self._shared.clock.monotonic() - started
        self._shared.meter.tried(choice.replica.id, outcome, seconds, ttft)
        if len(self.tries) >= MAX_TRIES:
            return
        decision = choice.decision
        self.tries.append(
            Try(
                replica=decision.replica_id,
                policy=decision.policy,
                reason=decision.reason,
                outcome=outcome,
                at=started - self._call.arrival,
                seconds=self._shared.clock.monotonic() - started,
                ttft=ttft,
            )
        )

    def _sent_to(self, replica: Replica) -> wire.Incoming | None:
        """The request as this replica gets it; None if it cannot go on with what was begun elsewhere."""
        first = wire.Incoming(
            path=self._call.endpoint.path,
            body=self._body(replica),
            is_stream=self._call.is_stream,
            request_id=self._call.request_id,
            created=self._created,
            sent_at=int(self._shared.clock.wall()),
            owner=self._wanted.owner,
        )
        if not self._answer.has_begun:
            return first
        if not (self.progress.keeps_text or is_peer(replica)):
            return None
        return replica.backend.resume(first, self.progress.as_wire())

    def _body(self, replica: Replica) -> bytes:
        """The client's body with what this gateway puts in."""
        call, wanted = self._call, self._wanted
        changes: dict[str, object] = {}
        if call.model != wanted.model:
            changes["model"] = wanted.model
        if self._adds_usage:
            # What an answer cost is counted by the replica; the client does not see the event.
            options = call.body.get("stream_options")
            options = options if isinstance(options, dict) else {}
            changes["stream_options"] = {**options, "include_usage": True}
        if wanted.salt and replica.spec.dialect in _SALTING:
            changes["cache_salt"] = wanted.salt
        return patched(call, changes)

    def _keeps_text(self, replica: Replica) -> bool:
        """An answer of this replica could be gone on with by its text, and by nothing better."""
        call = self._call
        return (
            call.is_stream and call.endpoint.can_resume and call.is_single and not is_peer(replica)
        )

    def _wanted_now(self) -> Wanted:
        """An answer that has begun can be gone on with only by some; some have no words for the request."""
        wanted = self._wanted
        if self._unfit:
            suited = wanted.suited
            wanted = wanted._replace(
                suited=lambda replicas: suited([r for r in replicas if r.id not in self._unfit])
            )
        if not self._answer.has_begun:
            return wanted
        return wanted._replace(
            suited=lambda replicas: wanted.suited(
                [replica for replica in replicas if self._sent_to(replica) is not None]
            )
        )

    def _blame(self, replica: Replica, failure: UpstreamError) -> None:
        if failure.kind is FailureKind.SUPERSEDED:
            return
        log.info("Replica %s failed a request: %s", replica.id, failure)
        replica.last_failure = str(failure)
        if failure.is_doubtful:
            self._doubted.append(replica)
        elif failure.kind not in _BLAMELESS:
            self._hold_against(replica)
        if failure.kind is FailureKind.CONNECT:
            self._shared.prober.note_unreachable(replica, str(failure))
        elif failure.kind not in (FailureKind.OVERLOADED, FailureKind.MODEL):
            self._shared.prober.look_now(replica, at_all=failure.kind is FailureKind.REFUSED)

    def _hold_against(self, replica: Replica, request: int | None = None) -> None:
        if replica.breaker.note_failure(self._shared.clock.monotonic(), request):
            why = replica.last_failure
            log.warning("Replica %s fails request after request, the last with %s", replica.id, why)

    def _go_on_after(self, failure: UpstreamError) -> None:
        """Raises HeadraceError if there is no further try."""
        if isinstance(failure, UnfitError):
            if self._shared.router.free_places(self._wanted_now()) is None:
                raise failure.reason
            return
        if not self._answer.has_begun:
            self._attempts.note_failure(failure, self._shared.clock.monotonic())
            self._shared.meter.retried(failure.kind)
            return
        if not (self._call.endpoint.can_resume and self._call.is_single):
            what = "of several choices" if self._call.endpoint.can_resume else "of this API"
            self._attempts.end(failure, f"An answer {what} cannot be gone on with; ask again.")
        self._attempts.note_break(failure)
        self._shared.meter.resumed(failure.kind)


def _nothing() -> None:
    pass


def is_peer(replica: Replica) -> bool:
    """It tells the ids of its tokens, and goes on from them."""
    return replica.spec.dialect is Dialect.HEADRACE and bool(replica.spec.peer_token)
