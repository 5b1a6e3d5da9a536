"""The engine: plan, execute, commit. Everything else hangs off these three lines."""

from collections import deque
from contextlib import suppress
from typing import Protocol

from headrace.core.clock import Clock
from headrace.core.errors import IntegrityError
from headrace.core.events import TokenEvent
from headrace.core.request import Request
from headrace.core.stats import EngineStats, StepStats
from headrace.core.step import OutputKind, StepPlan, StepResult
from headrace.engine.memory.events import KVEvent
from headrace.engine.scheduler.scheduler import Scheduler


class Executor(Protocol):
    """What the engine needs of an executor. Plans are run in the order they were submitted."""

    def submit(self, plan: StepPlan) -> None:
        """Start a plan; may return before it is done."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest submitted plan. A failure of the whole step is raised."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...


class Engine:
    """One model's loop body. Not thread-safe; whoever owns it calls from one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        max_uncommitted_plans: int = 1,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._max_uncommitted = max_uncommitted_plans
        self._uncommitted: deque[tuple[StepPlan, float]] = deque()
        self.last_step: StepStats | None = None

    def add(self, request: Request) -> list[TokenEvent]:
        """Take a request in. Returns its final events at once when it cannot ever run."""
        return self._scheduler.add(request, self._clock.monotonic())

    def cancel(self, request_id: str, index: int | None = None) -> list[TokenEvent]:
        """End a request, or one of its sequences; its blocks are free before the next step."""
        return self._scheduler.cancel(request_id, index, self._clock.monotonic())

    def has_work(self) -> bool:
        """A call to `step` would do something."""
        return bool(self._uncommitted) or self._scheduler.has_work()

    def step(self) -> list[TokenEvent]:
        """Submit plans up to the allowed depth, then commit the oldest one."""
        while len(self._uncommitted) < self._max_uncommitted:
            plan, events = self._scheduler.schedule(self._clock.monotonic())
            if events:
                if plan is not None:
                    self._submit(plan)
                return events
            if plan is None:
                break
            self._submit(plan)
        if not self._uncommitted:
            return []
        plan, started = self._uncommitted.popleft()
        result = self._executor.collect()
        now = self._clock.monotonic()
        self._record(plan, result, started, now)
        return self._scheduler.commit(result, now)

    def fail_all(self, reason: str) -> list[TokenEvent]:
        """A step raised: end every running sequence with an error and forget the plans in flight."""
        while self._uncommitted:
            self._uncommitted.popleft()
            with suppress(Exception):
                self._executor.collect()
        return self._scheduler.fail_all(reason, self._clock.monotonic())

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
        return self._scheduler.stats(self._clock.monotonic())

    def close(self) -> None:
        """Give back what the executor holds."""
        self._executor.close()

    def _submit(self, plan: StepPlan) -> None:
        self._uncommitted.append((plan, self._clock.monotonic()))
        self._executor.submit(plan)

    def _record(self, plan: StepPlan, result: StepResult, started: float, now: float) -> None:
        decode = sum(
            row.num_tokens
            for row in plan.rows
            if row.output is not OutputKind.NONE and row.num_tokens == 1 + row.num_draft
        )
        self.last_step = StepStats(
            step_id=plan.step_id,
            started=started,
            seconds=now - started,
            num_prefill_tokens=plan.num_tokens - decode,
            num_decode_tokens=decode,
            num_sequences=len(plan.rows),
            inputs_seconds=result.times.inputs,
            model_seconds=result.times.model,
            sample_seconds=result.times.sample,
        )
