"""What a plan may ask for and this executor cannot do is refused, never done wrongly."""

import pytest
from tests.support.fake_clock import FakeClock

from headrace.core.errors import KernelError
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.core.sampling import SamplingParams
from headrace.core.step import (
    BlockTransfer,
    OutputKind,
    PlanRow,
    PlanText,
    SequenceStart,
    StepPlan,
)
from headrace.engine.executor.executor import ExecutorParts, ModelExecutor, OverlappedExecutor
from headrace.engine.executor.kv_storage import KVStorage
from headrace.kernels.shapes import ShapeBackend
from headrace.kernels.values import DType, KVLayout, Rows, StepLimits


@pytest.fixture
def executor():
    backend = ShapeBackend()
    cache = backend.create_kv_cache(KVLayout(1, 1, 16, 16, DType.F16, (0,), (4,)))
    recorder = backend.recorder(StepLimits(8, 2), cache)
    logits = recorder.buffer(Rows.OUTPUTS, 32)
    parts = ExecutorParts(backend, recorder.finish(), logits, KVStorage(cache))
    return ModelExecutor(parts, FakeClock(), max_num_seqs=2, max_tokens=8, max_context=32)


def start(**fields):
    return SequenceStart(0, SamplingParams(), (), [1, 2], 2, 0, **fields)


def row(**fields):
    return PlanRow(0, 0, 2, [1, 2], OutputKind.SAMPLE, **fields)


TEXT = PlanText([1, 2], PoolingParams(PoolKind.MEAN))


def test_a_plain_plan_runs(executor):
    result = executor.execute(StepPlan(step_id=1, rows=(row(),), starts=(start(),)))
    assert [len(r.token_ids) for r in result.rows] == [1]


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (StepPlan(step_id=1, rows=(row(),), starts=(start(adapter_index=1),)), "adapter 1"),
        (StepPlan(step_id=1, rows=(row(num_observed=1),), starts=(start(),)), "attention"),
        (StepPlan(step_id=1, rows=(), texts=(TEXT,)), "pools no texts"),
        (StepPlan(step_id=1, rows=(row(),), block_loads=(BlockTransfer(0, 1, b"k"),)), "tier"),
        (StepPlan(step_id=1, rows=(row(),), block_stores=(BlockTransfer(0, 1, b"k"),)), "tier"),
    ],
)
def test_what_it_has_not_is_a_kernel_error(executor, plan, sentence):
    with pytest.raises(KernelError, match=sentence):
        executor.execute(plan)


def test_what_is_queued_behind_a_failed_plan_is_not_run(executor):
    overlapped = OverlappedExecutor(executor)
    good = StepPlan(step_id=1, rows=(row(),), starts=(start(),))
    bad = StepPlan(step_id=2, rows=(), texts=(TEXT,))
    ran = []
    executor.execute, execute = (
        lambda plan: ran.append(plan.step_id) or execute(plan),
        executor.execute,
    )
    try:
        for plan in (good, bad, good, good):
            overlapped.submit(plan)
        assert overlapped.collect().step_id == 1
        for message in ("pools no texts", "before this one", "before this one"):
            with pytest.raises(KernelError, match=message):
                overlapped.collect()
        assert ran == [1, 2]
        overlapped.submit(good)
        assert overlapped.collect().step_id == 1
    finally:
        overlapped.close()
