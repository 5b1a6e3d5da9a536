"""The engine: plan, execute, commit. Everything else hangs off these three lines."""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, HeadraceError, IntegrityError, InternalError
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.kv_blocks import KVBlocks
from headrace.core.model_info import AdapterInfo
from headrace.core.request import Request
from headrace.core.stats import EngineStats, StepStats
from headrace.core.step import BlockLanding, OutputKind, StepPlan, StepResult
from headrace.engine.adapter_jobs import AdapterJobs
from headrace.engine.adapters import AdapterShelf
from headrace.engine.failure import ExecutorBrokenError
from headrace.engine.grammar_gate import GrammarGate
from headrace.engine.kv_exchange import KVExchange
from headrace.engine.memory.events import KVEvent
from headrace.engine.messages import AdapterAnswer, AdapterOrder
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.texts import TextBounds, TextLane

#: Sequences in a row that each failed a step alone, after which the executor is taken to be broken.
MAX_LONE_FAILURES = 16

log = logging.getLogger("headrace.engine")


class Executor(Protocol):
    """What the engine needs of an executor. Plans are run in the order they were submitted.

    A plan that fails is not run in part as far as later plans can see: slots and table entries that it
    brought are brought again. Plans submitted behind it are not run, and `collect` raises for each.
    """

    def submit(self, plan: StepPlan) -> None:
        """Start a plan; may return before it is done. Raises when it failed already."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest plan whose `submit` returned. A failure of the whole step is raised."""
        ...

    def call(self, action: Callable[[], None]) -> None:
        """Do this between plans: behind those submitted before, ahead of those to come."""
        ...

    def take_landed(self) -> list[BlockLanding]:
        """Loads of blocks, begun by any plan, that ended since the last call. Does not wait."""
        ...

    def park(self) -> None:
        """Give back the memory of keys, values and scratch; weights stay. No plan is in flight, and what was
        in the cache is gone. The next plan takes the memory anew.
        """
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...


class _Submitted(Struct, frozen=True):
    """A plan in flight."""

    plan: StepPlan
    started: float
    error: Exception | None = None
    """What `submit` raised; told when its turn to be collected comes."""


class Engine:
    """One model's loop body. Not thread-safe; whoever owns it calls from one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        gate: GrammarGate | None = None,
        texts: TextLane | None = None,
        makes_text: bool = True,
        adapters: AdapterShelf | None = None,
        exchange: KVExchange | None = None,
    ) -> None:
        """`gate` compiles grammars; without one, a request that has one comes to a dead end. `texts` has the
        requests for vectors; an encoder, which does not make text, has no others.
        `adapters` are those of `executor`, and known to `scheduler`; `exchange` is over its keys and values.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._max_uncommitted = scheduler.config.max_uncommitted_plans
        self._uncommitted: deque[_Submitted] = deque()
        self._num_lone_failures = 0
        self._last_end = 0.0
        self._gate = gate
        self._texts = texts or TextLane(TextBounds(1, 1, 0), scheduler.totals, aging=0.0)
        self._makes_text = makes_text
        self._exchange = exchange
        self._is_texts_turn = True
        self._adapters = adapters
        self._adapter_jobs = AdapterJobs(adapters)
        self.last_step: StepStats | None = None

    def add(self, request: Request) -> list[TokenEvent]:
        """Take a request in. Returns its final events at once when it cannot ever run."""
        now = self._clock.monotonic()
        if not self._makes_text and request.pooling is None:
            error = BadRequestError("This model makes no text; it makes vectors of texts.")
            return _ends(request, FinishReason.ERROR, error)
        if self._adapters is not None:
            self._adapters.enter(request)
        if request.pooling is not None:
            return self._told(self._texts.add(request, now))
        if self._gate is not None and not self._gate.enter(request, now):
            return []
        return self._told(self._scheduler.add(request, now))

    def cancel(self, request_id: str, index: int | None = None) -> list[TokenEvent]:
        """End a request, or one of its sequences; its blocks are free before the next step."""
        if self._texts.knows(request_id):
            return self._told(self._texts.cancel(request_id))
        if self._gate and self._gate.cancel(request_id, index):
            return []  # its end comes with the next step
        return self._told(self._scheduler.cancel(request_id, index, self._clock.monotonic()))

    def has_work(self) -> bool:
        """A call to `step` would do something."""
        return (
            bool(self._uncommitted)
            or self._scheduler.has_work()
            or bool(self._gate)
            or self._texts.is_waiting
            or self._adapter_jobs.is_reading
        )

    @property
    def is_waiting(self) -> bool:
        """Some request waits for another thread, to compile its grammar or to load its blocks."""
        return bool(self._gate) or self._scheduler.is_loading

    def wake_at(self) -> float | None:
        """While `step` does nothing on purpose: when it will, if nothing arrives. None: ask again soon."""
        waits = self._uncommitted or self._gate or self._texts.is_waiting
        if waits or self._adapter_jobs.is_reading:
            return None
        return self._scheduler.wake_at()

    def step(self) -> list[TokenEvent]:
        """Submit plans up to the allowed depth, then commit the oldest one.

        A step that fails is undone and its sequences are run again apart, until it is known which of them
        cannot be run; that one ends with an error, for all others it was a delay. Raises
        ExecutorBrokenError when nothing succeeds any more.
        """
        if self._num_lone_failures >= MAX_LONE_FAILURES:
            raise ExecutorBrokenError(
                f"{self._num_lone_failures} sequences failed one after another."
            )
        self._scheduler.land(self._executor.take_landed())
        if self._gate and (events := self._take_passed()):
            return events
        while not self._uncommitted or self._can_submit():
            if self._texts.is_waiting and self._is_texts_turn:
                if self._uncommitted:
                    break  # they run beside nothing else
                plan, events = self._texts.schedule(self._clock.monotonic())
                self._is_texts_turn = not self._scheduler.has_work()
            else:
                plan, events = self._scheduler.schedule(self._clock.monotonic())
                self._is_texts_turn = True
            if plan is not None:
                self._submit(plan)
            if events:
                return self._told(events)
            if plan is None:
                break
        return self._told(self._commit_oldest()) if self._uncommitted else []

    def fail_all(self, reason: str) -> list[TokenEvent]:
        """`step` raised: end every sequence with an error and forget the plans in flight."""
        self._discard()
        self._num_lone_failures = 0
        events = self._scheduler.fail_all(reason, self._clock.monotonic())
        events += self._texts.fail_all(reason)
        if self._gate is not None:
            for request in self._gate.clear():
                events += _ends(request, FinishReason.ERROR, InternalError(reason))
        return self._told(events)

    def take_kv_events(self) -> list[KVEvent]:
        """Blocks stored and removed since the last call."""
        return self._scheduler.take_kv_events()

    def check_integrity(self) -> list[str]:
        """What does not add up in the KV ledger; empty when all is well. O(blocks): call it when idle."""
        try:
            self._scheduler.check_integrity()
        except IntegrityError as error:
            return [str(error)]
        return []

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        now = self._clock.monotonic()
        stats = self._scheduler.stats(now)
        return replace(stats, **self._texts.add_to(stats, now)) if self._texts.has_work else stats

    def order_adapter(self, order: AdapterOrder) -> None:
        """Load or unload a LoRA adapter while steps go on; the answer comes in `take_adapter_answers`."""
        self._adapter_jobs.order(order)

    def take_adapter_answers(self) -> list[AdapterAnswer]:
        """What became of orders since the last call; adapters that were read are served from now on."""
        return self._adapter_jobs.take()

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> AdapterInfo:
        """Serve a LoRA adapter; steps stand still while it is read. Raises HeadraceError."""
        return self._shelf().load(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Take no new requests for an adapter, and forget it when the last has ended. Raises HeadraceError."""
        self._shelf().unload(name)

    def take_unloaded(self) -> list[str]:
        """Names of adapters that have been forgotten since the last call."""
        return [] if self._adapters is None else self._adapters.take_unloaded()

    def export_blocks(self, request: Request) -> KVBlocks:
        """Keys and values of the full blocks with which the request's prompt begins, as far as they are cached.

        Steps stand still meanwhile. Raises BadRequestError for an engine that keeps none.
        """
        return self._kv_exchange().export(request)

    def import_blocks(self, blocks: KVBlocks) -> None:
        """Prompts that begin with these blocks, which another engine of this model gave, need not compute them.

        The first of them waits while they are loaded; others go on. Raises BadRequestError for what does not
        fit this model, or without a tier to put it in.
        """
        self._kv_exchange().accept(blocks)

    def _kv_exchange(self) -> KVExchange:
        if self._exchange is None:
            raise BadRequestError("This engine keeps no KV blocks.")
        return self._exchange

    def _shelf(self) -> AdapterShelf:
        if self._adapters is None:
            raise BadRequestError("This engine has no place for adapters: see --lora-root.")
        return self._adapters

    def park(self) -> None:
        """After `fail_all`: give back all memory but the weights'. Requests may be added again at any time."""
        self._executor.park()

    def close(self) -> None:
        """Give back what the executor holds."""
        self._adapter_jobs.close()
        if self._gate is not None:
            self._gate.close()
        self._executor.close()

    def _take_passed(self) -> list[TokenEvent]:
        """Hand requests whose grammar is compiled to the scheduler, and end those that cannot run."""
        assert self._gate is not None
        events: list[TokenEvent] = []
        now = self._clock.monotonic()
        for passed in self._gate.take(now):
            request = passed.request
            if passed.finish is not None:
                events += _ends(request, passed.finish, passed.error)
                continue
            events += self._scheduler.add(request, now)
            for index in passed.cancelled:
                events += self._scheduler.cancel(request.request_id, index, now)
        return self._told(events)

    def _told(self, events: list[TokenEvent]) -> list[TokenEvent]:
        """The same, after the gate and the adapters have seen who ended."""
        if self._gate is not None:
            self._gate.watch(events)
        if self._adapters is not None:
            self._adapters.watch(events)
        return events

    def _can_submit(self) -> bool:
        waiting = self._uncommitted
        # Behind a plan that failed at once, nothing may be run.
        # Nor behind texts, which run beside nothing else.
        return len(waiting) < self._max_uncommitted and not (
            waiting and (waiting[-1].error or waiting[-1].plan.texts)
        )

    def _submit(self, plan: StepPlan) -> None:
        started = self._clock.monotonic()
        try:
            self._executor.submit(plan)
        except Exception as error:  # noqa: BLE001 - whatever a step raises is dealt with in its turn
            self._uncommitted.append(_Submitted(plan, started, error))
        else:
            self._uncommitted.append(_Submitted(plan, started))

    def _commit_oldest(self) -> list[TokenEvent]:
        submitted = self._uncommitted.popleft()
        plan = submitted.plan
        try:
            if submitted.error is not None:
                raise submitted.error
            result = self._executor.collect()
        except Exception as failure:
            num_rows = len(plan.rows) + len(plan.texts)
            log.exception("A step with %d rows failed; they are run apart", num_rows)
            return self._recover(failure, plan)
        now = self._clock.monotonic()
        self._num_lone_failures = 0
        if plan.rows or plan.texts:
            # With several plans in flight a step begins when the one before it is done.
            self._record(plan, result, max(submitted.started, self._last_end), now)
            self._last_end = now
        return (self._texts if plan.texts else self._scheduler).commit(result, now)

    def _recover(self, failure: Exception, plan: StepPlan) -> list[TokenEvent]:
        self._discard()
        reason = f"A step of the engine failed: {type(failure).__name__}."
        if plan.texts:
            events = self._texts.recover(reason)
        else:
            events = self._scheduler.recover(reason, self._clock.monotonic())
        # A plan without rows has nothing that could be run apart: only transfers of blocks.
        self._num_lone_failures += len(events) if plan.rows or plan.texts else 1
        return events

    def _discard(self) -> None:
        """Forget the plans in flight."""
        while self._uncommitted:
            if self._uncommitted.popleft().error is None:
                with suppress(Exception):
                    self._executor.collect()

    def _record(self, plan: StepPlan, result: StepResult, started: float, now: float) -> None:
        num_tokens = plan.num_tokens if plan.texts else 0
        decode = 0
        for row in plan.rows:
            num_tokens += row.num_tokens
            if row.output is not OutputKind.NONE and row.num_tokens == 1 + row.num_draft:
                decode += row.num_tokens
        times = result.times
        self.last_step = StepStats(
            step_id=plan.step_id,
            started=started,
            seconds=now - started,
            num_prefill_tokens=num_tokens - decode,
            num_decode_tokens=decode,
            num_sequences=len(plan.rows) or len(plan.texts),
            inputs_seconds=times.inputs,
            model_seconds=times.model,
            sample_seconds=times.sample,
        )


def _ends(
    request: Request, finish: FinishReason, error: HeadraceError | None = None
) -> list[TokenEvent]:
    """The ends of a request that never came to the scheduler."""
    message, kind = (None, None) if error is None else (str(error), type(error).__name__)
    return [
        TokenEvent(request.request_id, index, finish=finish, error=message, error_kind=kind)
        for index in range(max(1, request.n))
    ]
