"""One request that must be made: paid for in advance, through its targets in turn, settled at its end.

It may outlive its client: others may listen to its answer (`cache/serving.py`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from headrace.config.fleet.models import Cause
from headrace.config.fleet.replicas import Price
from headrace.core.errors import HeadraceError
from headrace.fleet.cache.serving import FALLBACK_HEADER
from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.accounts.ledger import UsageRow
from headrace.fleet.gateway.accounts.meters import Estimate
from headrace.fleet.gateway.accounts.money import lowest_cost
from headrace.fleet.gateway.accounts.reservation import Reservation
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.bill import Bill, bill_of, bill_of_prompt, estimate, prices_of
from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.causes import cause_of, cause_of_refusal
from headrace.fleet.gateway.dispatch import Dispatch
from headrace.fleet.gateway.endpoints import RESPONSES, Kind
from headrace.fleet.gateway.exchange import RefusedError
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket
from headrace.fleet.gateway.limit import within
from headrace.fleet.gateway.models.canary import Outcome
from headrace.fleet.gateway.models.values import Route, Target
from headrace.fleet.gateway.progress import AnswerUsage, usage_of
from headrace.fleet.gateway.request_meter import Finished, Result
from headrace.fleet.gateway.router import Wanted
from headrace.fleet.gateway.spans import tell_end
from headrace.fleet.gateway.trade import Trade
from headrace.fleet.gateway.trip import Trip, Try, way_of
from headrace.web.asgi import Send
from headrace.web.problems import HttpError, answer_to, status_for

#: Tells a client how many seconds its request waited for a replica to start.
COLD_START = "x-headrace-cold-start"

log = logging.getLogger("headrace.fleet")


class Order:
    """See the module. `make` it once."""

    def __init__(
        self,
        trade: Trade,
        account: Account,
        call: Call,
        route: Route,
        wanted_of: Callable[[Target], Wanted],
    ) -> None:
        self._trade = trade
        self._account = account
        self._call = call
        self._route = route
        self._wanted_of = wanted_of
        self._dispatch: Dispatch | None = None
        self._was_placed = False
        self._outcome: Outcome | None = None
        """Of the target that was meant, whatever a fallback did; None: it has not been at it."""
        self._bill = Bill()
        self._queued: float | None = None
        """Seconds that it waited for its turns; None: it had none."""
        self._is_paid = False
        """Its account had room for it."""
        self._tries: list[Try] = []
        """At all targets."""
        self._error = ""
        self._is_begun = False

    async def make(self, send: Send) -> None:
        """Have it answered. Raises HeadraceError, before anything was sent, for what the client is to be told."""
        answer = Answer(send, self._trade.clock)
        if self._route.explanation:
            answer.headers["x-headrace-model"] = self._route.explanation
        status = 499
        self._is_begun = True
        try:
            estimated = estimate(self._call, self._prices())
            reservation = await self._trade.accounts.reserve(self._account, estimated)
            self._is_paid = True
            if self._route.shadow is not None:
                self._trade.shadows.copy(self._call, self._wanted_of(self._route.shadow))
            with reservation:
                try:
                    await self._through_targets(answer)
                except asyncio.CancelledError:
                    self._note_left(answer)
                    # It counts as a request wherever its client left it: else nothing would bound those who come and go.
                    self._settle(reservation, self._bill_now() or self._bill_of_prompt() or Bill())
                    raise
                else:
                    # So does one that a replica refused.
                    self._settle(reservation, self._bill_now() or Bill())
                finally:
                    self._settle(reservation, self._bill_now())
            status = answer.status
        except Exception as error:
            status = status_for(error)
            self._error = _code_of(error)
            if isinstance(error, HeadraceError):
                error.headers = {**error.headers, **way_of(self._tries), **answer.headers}
            raise
        finally:
            self._record(answer, status)

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """It need not be made, for its answer is known: it counts as a request all the same, and takes a place for as long
        as it is told. Raises OverloadedError.
        """
        reservation = await self._trade.accounts.reserve(self._account, Estimate())
        try:
            yield
        finally:
            reservation.settle(tokens=0, cost=0)

    def record_untold(self, error: BaseException) -> None:
        """It ended so before it was told an answer that was known, or all of it. Does nothing if it was made: then `make`
        has told, or will.
        """
        if self._is_begun:
            return
        status, result = 499, Result.LEFT
        if isinstance(error, Exception):
            status, self._error = status_for(error), _code_of(error)
            is_own_fault = status >= 500 and not isinstance(error, HttpError)
            result = Result.FAILED if is_own_fault else Result.REFUSED
            result = Result.LIMITED if status == 429 else result
        row = self._row(Bill(), status=status, ttft=None)
        self._trade.ledger.count(row)
        self._ended(
            Finished(row=row, priority=self._account.priority, result=result, trip=self._trip(""))
        )

    def record_told(self, usage: Mapping[str, Any] | None) -> None:
        """Its answer was told without being made; `usage` is what it cost the first time."""
        found = usage_of(dict(usage)) if usage is not None else AnswerUsage()
        bill = Bill(prompt_tokens=found.prompt_tokens, output_tokens=found.output_tokens)
        row = self._row(bill, status=200, ttft=None)
        self._trade.ledger.record(row)
        saved = lowest_cost(
            self._prices(), prompt_tokens=found.prompt_tokens, output_tokens=found.output_tokens
        )
        self._ended(
            Finished(
                row=row,
                priority=self._account.priority,
                result=Result.OK,
                saved_tokens=found.prompt_tokens + found.output_tokens,
                saved_cost=saved,
                trip=self._trip("", is_cached=True),
            )
        )

    def _ended(self, finished: Finished) -> None:
        self._trade.requests.ended(finished)
        if self._call.trace is not None:
            tell_end(self._call.trace, self._call, finished)

    # -- targets ----------------------------------------------------------------------------------

    async def _through_targets(self, answer: Answer) -> None:
        place = 0
        while True:
            try:
                await self._at(place, answer)
                is_good = answer.status < 500 and not answer.is_broken
                self._note_end(place, is_good or self._is_late(), self._time_of(answer))
                return
            except RefusedError as error:
                # Said at once, whoever says it: no measure of how soon it answers.
                self._note_end(place, True)
                following = self._route.fallback(cause_of_refusal(error), place + 1)
                if following is None:
                    await answer.refused(error.refusal)
                    return
            except HeadraceError as error:
                if self._is_late():
                    self._note_left(answer)
                    raise
                self._note_end(place, status_for(error) < 500)
                cause = cause_of(error)
                following = None if cause is None else self._route.fallback(cause, place + 1)
                if following is None or answer.has_begun:
                    raise
            place = following
            answer.headers[FALLBACK_HEADER] = str(self._route.targets[place])

    def _note_end(self, place: int, is_good: bool, seconds: float | None = None) -> None:
        """A fallback's answer says nothing of the target that was meant."""
        if place == 0:
            self._outcome = Outcome(
                is_error=not is_good,
                seconds=seconds if is_good else None,
                is_whole=not self._call.is_stream,
            )

    def _is_late(self) -> bool:
        """The time of what it is a part of is over, whoever has used that up: no other target has any either."""
        limit = self._call.limit
        return limit is not None and limit.at <= self._trade.clock.monotonic()

    def _note_left(self, answer: Answer) -> None:
        """Its client has gone: it took at least as long as that has waited. Who left the queue says nothing."""
        if self._outcome is None and self._was_placed:
            waited = self._trade.clock.monotonic() - self._call.arrival
            self._note_end(0, True, self._time_of(answer) or waited)

    def _time_of(self, answer: Answer) -> float | None:
        """Seconds from the request's arrival until its answer began."""
        return None if answer.began_at is None else answer.began_at - self._call.arrival

    def _falls_back(self, cause: Cause, place: int) -> bool:
        """Another target takes what this one fails to answer for this cause."""
        return self._route.fallback(cause, place + 1) is not None

    async def _at(self, place: int, answer: Answer) -> None:
        trade, call, target = self._trade, self._call, self._route.targets[place]
        wanted = self._wanted_of(target)
        trade.dispatcher.router.check(wanted)
        self._dispatch = trade.dispatcher.dispatch(call, wanted, answer)
        if call.endpoint.kind is Kind.TEXT:  # costs a replica next to nothing
            try:
                await self._dispatch.run(self._note_lease)
            finally:
                self._tries += self._dispatch.tries
            return
        ticket = Ticket(
            lane=str(target),
            tenant=self._account.tenant,
            priority=self._account.priority,
            prompt_tokens=call.prompt_tokens,
            output_tokens=self._expected_output(target),
            num_bytes=len(call.raw),
            cold_wait=0.0 if self._falls_back(Cause.UNAVAILABLE, place) else None,
            can_move=self._falls_back(Cause.OVERLOADED, place),
            ttft=call.ttft,
            weight=self._account.weight,
        )
        asked = trade.clock.monotonic()
        slot = await within(call.limit, trade.admission.acquire(ticket), asked)
        now = trade.clock.monotonic()
        self._queued = (self._queued or 0.0) + now - asked
        if call.trace is not None:
            call.trace.add("queue", asked, now)
        if slot.cold_seconds > 0.0:
            answer.headers[COLD_START] = f"{slot.cold_seconds:.3f}"
        try:
            await self._dispatch.run(partial(self._note_lease, slot))
        finally:
            self._note_home()
            if slot.is_placed:
                # What came of it, not what it asked for: it may have been refused, or its client has left.
                bill = self._bill_now() or Bill(prompt_tokens=call.prompt_tokens)
                prompt = max(0, bill.prompt_tokens - bill.cached_tokens)
                slot.used(prompt_tokens=prompt, output_tokens=bill.output_tokens)
            if (replica := self._dispatch.replica) is not None:
                # A whole answer begins when all of it is made: that tells nothing of its first token.
                began = answer.began_at if call.is_stream else None
                pace = self._dispatch.progress.pace if call.is_stream else None
                slot.answered(
                    replica.id,
                    None if began is None else began - slot.arrived,
                    None if pace is None else pace.slow_gap,
                )
            slot.close()
            self._tries += self._dispatch.tries

    def _expected_output(self, target: Target) -> int:
        """Tokens, by what its client said and its model can: a claim is not believed."""
        if self._call.output_tokens <= self._trade.config.gateway.default_max_tokens:
            return self._call.output_tokens  # nearly always, and no replica need be looked at
        return self._call.output_within(self._trade.dispatcher.router.context(target.model))

    def _note_home(self) -> None:
        """The replica may keep what it answered; later requests about it go there."""
        assert self._dispatch is not None
        name, replica = self._dispatch.progress.name, self._dispatch.replica
        if self._call.endpoint.path == RESPONSES and name is not None and replica is not None:
            self._trade.homes.note(self._account.tenant, name["id"], replica.id)

    def _note_lease(self, slot: Slot | None = None) -> None:
        self._was_placed = True
        if slot is not None:
            slot.placed()

    # -- the account ------------------------------------------------------------------------------

    def _prices(self) -> list[Price]:
        return prices_of(self._route, self._trade.registry, self._trade.config)

    def _settle(self, reservation: Reservation, bill: Bill | None) -> None:
        """Once; what was not billed is given back."""
        if bill is not None and reservation.is_open:
            self._bill = bill
            tokens = bill.prompt_tokens + bill.output_tokens
            reservation.settle(tokens=tokens, cost=bill.cost)

    def _bill_of_prompt(self) -> Bill | None:
        return bill_of_prompt(self._call, self._prices()) if self._was_placed else None

    def _bill_now(self) -> Bill | None:
        """Tokens and money, as far as they are known; None while no replica has begun an answer."""
        dispatch = self._dispatch
        if dispatch is None or dispatch.replica is None:
            return None
        chars_per_token = self._trade.config.gateway.chars_per_token
        return bill_of(self._call, dispatch.replica, dispatch.progress, chars_per_token)

    def _record(self, answer: Answer, status: int) -> None:
        """Tell the trials and the ledger how it ended."""
        trade, now = self._trade, self._trade.clock.monotonic()
        ttft = self._time_of(answer)
        if self._outcome is not None:
            for trial in self._route.trials:
                if why := trade.canaries.note(trial, self._outcome, now):
                    log.warning("The canary of %s is off: %s", trial.rule, why)
        row = self._row(self._bill, status=status, ttft=ttft)
        if self._was_placed:
            trade.ledger.record(row)
        else:
            trade.ledger.count(row)
        self._meter(answer, row, now)

    def _meter(self, answer: Answer, row: UsageRow, now: float) -> None:
        """What it came to for its client."""
        result = self._result(answer, row.status)
        pace = self._dispatch.progress.pace if self._dispatch is not None else None
        has_left_early = result is Result.LEFT and self._call.is_stream and row.ttft is None
        self._ended(
            Finished(
                row=row,
                priority=self._account.priority,
                result=result,
                pace=pace,
                waited_for_first=now - self._call.arrival if has_left_early else None,
                queue=self._queued,
                saved_prefix_cost=self._bill.saved,
                trip=self._trip(answer.headers.get(FALLBACK_HEADER, "")),
            )
        )

    def _result(self, answer: Answer, status: int) -> Result:
        if status == 499:
            return Result.LEFT
        if answer.is_broken:
            return Result.BROKEN
        if status == 429:
            return Result.OVERLOADED if self._is_paid else Result.LIMITED
        if status >= 500:
            return Result.FAILED
        return Result.OK if status < 400 else Result.REFUSED

    def _trip(self, answered_by: str, *, is_cached: bool = False) -> Trip:
        return Trip(
            endpoint=self._call.endpoint.path,
            is_stream=self._call.is_stream,
            is_cached=is_cached,
            answered_by=answered_by,
            error=self._error,
            tries=tuple(self._tries),
        )

    def _row(self, bill: Bill, *, status: int, ttft: float | None) -> UsageRow:
        trade, call = self._trade, self._call
        now = trade.clock.monotonic()
        return UsageRow(
            time=trade.clock.wall() - (now - call.arrival),
            request_id=call.request_id,
            key=self._account.key,
            tenant=self._account.tenant,
            model=str(self._route.targets[0]),
            replica=bill.replica,
            prompt_tokens=bill.prompt_tokens,
            cached_tokens=bill.cached_tokens,
            output_tokens=bill.output_tokens,
            cost=bill.cost,
            ttft=ttft,
            latency=now - call.arrival,
            status=status,
        )


def _code_of(error: Exception) -> str:
    problem = answer_to(error).problem
    return str(problem.code or problem.type)
