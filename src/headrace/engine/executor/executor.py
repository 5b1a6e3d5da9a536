"""Runs plans: `submit` then `collect`, in order."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import Clock
from headrace.core.errors import KernelError
from headrace.core.step import BlockLanding, StepPlan, StepResult, StepTimes
from headrace.engine.executor.attention_mass import MassProgram, MassWatch
from headrace.engine.executor.inputs import InputBuilder, OutputRows
from headrace.engine.executor.kv_storage import KVStorage
from headrace.engine.executor.matching import Matchers
from headrace.engine.executor.pooler import Pooler, run_texts
from headrace.engine.executor.sampler import Sampler
from headrace.engine.executor.slots import SlotTable
from headrace.grammar.compiler import GrammarCompiler
from headrace.kernels.ops import Backend, Program
from headrace.kernels.values import Buffer, StepInputs


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """What an executor runs: a recorded model over a cache on a back end."""

    backend: Backend
    program: Program
    logits: Buffer
    storage: KVStorage
    record_mass: Callable[[int], MassProgram] | None = None
    """The same model, telling what attention falls on in block tables so wide."""


class ModelExecutor:
    """Runs each plan at `submit`, on the caller's thread; `collect` hands the result over."""

    def __init__(
        self,
        parts: ExecutorParts,
        clock: Clock,
        *,
        max_num_seqs: int,
        max_tokens: int,
        max_context: int,
        compiler: GrammarCompiler | None = None,
        pooler: Pooler | None = None,
        num_adapters: int = 0,
    ) -> None:
        """`num_adapters` is how many the program was recorded with; `compiler` is for sequences with a grammar, which come to a dead end without; `pooler` for texts."""
        layout = parts.storage.cache.layout
        block_size = layout.block_size
        max_blocks = -(-(max_context + 1) // block_size)
        num_groups = len(layout.num_blocks)
        self._table = SlotTable(max_num_seqs, max_context, (max_blocks,) * num_groups)
        self._inputs = InputBuilder(self._table, max_tokens=max_tokens)
        self._num_adapters = num_adapters
        self._matchers = Matchers(compiler)
        self._sampler = Sampler(parts.backend, self._table, self._matchers)
        self._mass = MassWatch(parts.record_mass, max_blocks, layout.num_kv_heads)
        self._parts = parts
        self._pooler = pooler
        self._clock = clock
        self._bound: StepInputs | None = None
        """What `_run` runs: the same object as long as the same rows are decoded."""
        self._run: Callable[[], NDArray[np.float32]] = _unbound
        self._done: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Run the plan now."""
        self._done.append(self.execute(plan))

    def collect(self) -> StepResult:
        """The oldest result that was not collected yet."""
        return self._done.popleft()

    def call(self, action: Callable[[], None]) -> None:
        """At once: no plan runs."""
        action()

    def take_landed(self) -> list[BlockLanding]:
        """Loads of blocks that ended since the last call."""
        return self._parts.storage.take_landed()

    def park(self) -> None:
        """Part of `Executor`."""
        self._parts.storage.clear()
        self._parts.program.clear()
        self._mass.park()
        if self._pooler is not None:
            self._pooler.park()

    def close(self) -> None:
        """End the thread that loads blocks."""
        self._parts.storage.close()

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the plan's changes, run its rows, sample."""
        began = self._clock.monotonic()
        self._apply(plan)
        if not plan.rows:
            self._parts.storage.finish(plan)
            return run_texts(self._pooler, plan, self._clock)
        inputs, outputs = self._inputs.build(plan)
        is_observed = any(row.num_observed for row in plan.rows)
        run = self._observed(inputs, outputs) if is_observed else self._plain(inputs, outputs)
        built = self._clock.monotonic()
        logits = run()
        ran = self._clock.monotonic()
        rows = self._sampler.run(plan, outputs, logits)
        if is_observed:
            rows = self._mass.report(plan, rows)
        if plan.block_stores:
            self._parts.storage.finish(plan)
        sampled = self._clock.monotonic()
        times = StepTimes(built - began, ran - built, sampled - ran)
        return StepResult(step_id=plan.step_id, rows=rows, times=times)

    def _plain(self, inputs: StepInputs, outputs: OutputRows) -> Callable[[], NDArray[np.float32]]:
        if inputs is not self._bound:
            parts, self._bound = self._parts, inputs
            self._run = parts.program.bind(inputs, parts.logits, outputs.num_logits)
        return self._run

    def _observed(
        self, inputs: StepInputs, outputs: OutputRows
    ) -> Callable[[], NDArray[np.float32]]:
        return lambda: self._mass.run(inputs, outputs.num_logits)

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.ended_slots:
            self._table.end(slot)
            self._matchers.end(slot)
            self._mass.end(slot)
            self._sampler.bounds.end(slot)
        for start in plan.starts:
            if start.adapter_index > self._num_adapters:
                raise KernelError(f"This executor has no adapter {start.adapter_index}.")
            self._mass.end(start.slot)
            self._table.start(start)
            self._matchers.start(start)
            self._sampler.bounds.start(start)
        for write in plan.block_writes:
            self._table.write_blocks(write)
        if plan.block_copies or plan.block_loads or plan.block_stores:
            self._parts.storage.begin(plan)


def _unbound() -> NDArray[np.float32]:
    raise KernelError("No step was bound yet.")


class TextExecutor:
    """Of an encoder: all that it runs are texts."""

    def __init__(self, pooler: Pooler, clock: Clock) -> None:
        pooler.record()
        self._pooler = pooler
        self._clock = clock
        self._done: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Run the plan now."""
        self._done.append(self.execute(plan))

    def collect(self) -> StepResult:
        """The oldest result that was not collected yet."""
        return self._done.popleft()

    def call(self, action: Callable[[], None]) -> None:
        """At once: no plan runs."""
        action()

    def take_landed(self) -> list[BlockLanding]:
        """None: it has no blocks."""
        return []

    def park(self) -> None:
        """Part of `Executor`."""
        self._pooler.park()

    def close(self) -> None:
        """Nothing is held beyond the objects themselves."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises KernelError for a plan with sequences."""
        if plan.rows:
            raise KernelError("This model continues no text.")
        return run_texts(self._pooler, plan, self._clock)


class RunsPlans(Protocol):
    """What can be run on a thread of its own."""

    def execute(self, plan: StepPlan) -> StepResult: ...
    def take_landed(self) -> list[BlockLanding]: ...
    def park(self) -> None: ...
    def close(self) -> None: ...


class OverlappedExecutor:
    """Runs plans on a thread of its own, in order, so that the next can be planned meanwhile.

    Kernels release the interpreter lock; the scheduler's work hides behind them. When a plan fails, those
    queued behind it are not run: they count on slots and blocks that it was to bring.
    """

    def __init__(self, inner: RunsPlans) -> None:
        self._inner = inner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="executor")
        self._pending: deque[Future[StepResult]] = deque()
        self._has_failed = False

    def submit(self, plan: StepPlan) -> None:
        """Queue the plan behind those submitted before."""
        self._pending.append(self._thread.submit(self._execute, plan))

    def collect(self) -> StepResult:
        """Wait for the oldest plan; what it raised is raised here."""
        try:
            return self._pending.popleft().result()
        finally:
            if not self._pending:
                self._has_failed = False

    def call(self, action: Callable[[], None]) -> None:
        """On the thread that runs plans, in its turn; waits for it."""
        self._thread.submit(action).result()

    def take_landed(self) -> list[BlockLanding]:
        """Loads of blocks that ended since the last call, whatever runs."""
        return self._inner.take_landed()

    def park(self) -> None:
        """On the thread that runs plans; waits for it."""
        self.call(self._inner.park)

    def close(self) -> None:
        """Wait for what runs, then end the thread."""
        self._thread.shutdown(wait=True)
        self._inner.close()

    def _execute(self, plan: StepPlan) -> StepResult:
        if self._has_failed:
            raise KernelError("A plan before this one failed.")
        try:
            return self._inner.execute(plan)
        except BaseException:
            self._has_failed = True
            raise
