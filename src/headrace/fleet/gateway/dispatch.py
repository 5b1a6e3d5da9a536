"""One admitted request: tried at one replica after another until its client has its answer.

Before the first byte any replica may take over, and the client does not notice. After it, another replica goes on from
the tokens that were sent; if none can, the stream ends with an error event. Nothing is ever sent twice.
"""

import asyncio
import logging
from typing import Any

from headrace.config.fleet.gateway import GatewayConfig
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.attempts import Attempts, RetryBudget
from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.exchange import Exchange, is_peer
from headrace.fleet.gateway.relay import Progress
from headrace.fleet.gateway.router import Choice, Router, Wanted
from headrace.fleet.prober import Prober
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

log = logging.getLogger("headrace.fleet")

#: Failures that say nothing against a replica's health.
_BLAMELESS = frozenset({FailureKind.OVERLOADED, FailureKind.REFUSED})


class Dispatcher:
    """Makes dispatches; what they share."""

    def __init__(self, router: Router, prober: Prober, config: GatewayConfig, clock: Clock) -> None:
        self.router = router
        self.prober = prober
        self.config = config
        self.clock = clock
        self.budget = RetryBudget(config.retries.budget)

    async def run(self, call: Call, wanted: Wanted, answer: Answer, patience: float) -> Progress:
        """Have a request answered; what is known of its answer in the end.

        `patience`: seconds that it waits while no replica can be used. Raises HeadraceError before the first byte.
        """
        self.budget.note_request(self.clock.monotonic())
        dispatch = _Dispatch(self, call, wanted, answer, patience)
        try:
            async with asyncio.timeout(self.config.timeouts.total):
                await dispatch.run()
        except TimeoutError:
            error = UnavailableError(
                f"The request was not answered in {self.config.timeouts.total:g} s."
            )
            await dispatch.give_up(error)
        except HeadraceError as error:
            await dispatch.give_up(error)
        return dispatch.progress


class _Dispatch:
    def __init__(
        self, shared: Dispatcher, call: Call, wanted: Wanted, answer: Answer, patience: float
    ) -> None:
        self._shared = shared
        self._call = call
        self._wanted = wanted
        self._answer = answer
        self._patience = patience
        self._attempts = Attempts(shared.config.retries, shared.budget)
        self._seed: str | None = None
        self.progress = Progress()

    async def run(self) -> None:
        """Until the answer is complete. Raises HeadraceError for what cannot be mended."""
        while True:
            choice = await self._choose()
            try:
                await self._try(choice)
                choice.replica.breaker.note_success()
                return
            except UpstreamError as failure:
                self._blame(choice.replica, failure)
                if self.progress.has_finished:
                    # All of the answer is there; only its end marker is not.
                    await self._answer.write(b"" if self.progress.is_done else b"data: [DONE]\n\n")
                    await self._answer.end()
                    return
                self._go_on_after(choice.replica, failure)

    async def give_up(self, error: HeadraceError) -> None:
        """Tell the client; raises `error` if it can still be told by a status."""
        if not self._answer.has_begun:
            raise error
        log.warning("A stream broke off: %s", error)
        await self._answer.break_off(error, is_openai=bool(self._call.endpoint.end))

    async def _choose(self) -> Choice:
        shared = self._shared
        deadline = shared.clock.monotonic() + self._patience
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

    async def _try(self, choice: Choice) -> None:
        replica, decision = choice
        if not self._answer.has_begun:
            self.progress = Progress()
            self._answer.headers["x-headrace-route"] = (
                f"{decision.replica_id}; {decision.policy}; {decision.reason}"
            )
        exchange = Exchange(self._call, replica, self._shared.config, self._shared.clock)
        try:
            await exchange.run(self._answer, self.progress, self._changes(), decision.cached_tokens)
        finally:
            self._seed = exchange.seed or self._seed

    def _changes(self) -> dict[str, Any]:
        """Fields of the body that this replica gets otherwise than the client sent them."""
        changes: dict[str, Any] = {}
        if self._wanted.model != self._call.model and self._call.model:
            changes["model"] = self._wanted.model
        if self._answer.has_begun:
            changes["prior_output_ids"] = self.progress.token_ids
            if self._seed is not None:
                changes["seed"] = int(self._seed)
        return changes

    def _wanted_now(self) -> Wanted:
        """An answer that has begun can be gone on with only by some."""
        wanted = self._wanted
        if not self._answer.has_begun:
            return wanted
        return wanted._replace(suits=lambda replica: is_peer(replica) and wanted.suits(replica))

    def _blame(self, replica: Replica, failure: UpstreamError) -> None:
        log.info("Replica %s failed a request: %s", replica.id, failure)
        if failure.kind not in _BLAMELESS:
            replica.breaker.note_failure(self._shared.clock.monotonic())
        if failure.kind is not FailureKind.OVERLOADED:
            self._shared.prober.look_now(replica)

    def _go_on_after(self, replica: Replica, failure: UpstreamError) -> None:
        """Raises HeadraceError if there is no further try."""
        if not self._answer.has_begun:
            self._attempts.note_failure(replica.id, failure, self._shared.clock.monotonic())
            return
        call = self._call
        if not (call.endpoint.can_resume and call.is_single and is_peer(replica)):
            self._attempts.end(failure)
        self._attempts.note_break(replica.id, failure)
