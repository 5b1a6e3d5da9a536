"""Grammar masks travel in the plan and bound the draws, drafts included; other rows are free."""

import msgspec
import numpy as np
import pytest
from tests.support.fake_clock import FakeClock

from headrace.core.errors import KernelError
from headrace.core.sampling import SamplingParams
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.engine.executor.executor import ExecutorParts, ModelExecutor
from headrace.engine.executor.inputs import InputBuilder
from headrace.engine.executor.sampler import Sampler, unpack_masks
from headrace.engine.executor.slots import SlotTable
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.kernels.shapes import ShapeBackend
from headrace.kernels.values import DType, KVLayout, Rows, StepLimits

VOCAB = 40
#: Token 39 is the likeliest, 38 the next, and so on.
LOGITS = np.arange(VOCAB, dtype=np.float32)


def mask(*allowed):
    bits = np.zeros(64, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def start(slot, num_tokens=2):
    greedy = SamplingParams(temperature=0.0)
    return SequenceStart(slot, greedy, (), list(range(num_tokens)), num_tokens, 0)


def row(slot, *masks, drafts=()):
    token_ids = [1, *drafts]
    return PlanRow(
        slot, 1, len(token_ids), token_ids, OutputKind.SAMPLE, len(drafts), masks=tuple(masks)
    )


def draw(backend, *rows, masks=()):
    """What each row of the plan gave."""
    plan = StepPlan(step_id=1, rows=rows, token_masks=masks)
    plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
    table = SlotTable(4, 16, (1,))
    for slot in range(4):
        table.start(start(slot))
    _, outputs = InputBuilder(table, max_tokens=32).build(plan)
    logits = np.tile(LOGITS, (outputs.count, 1))
    return [r.token_ids for r in Sampler(backend, table).run(plan, outputs, logits)]


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    return ReferenceBackend() if request.param == "reference" else CpuBackend("generic", 1)


def test_each_row_draws_what_its_mask_allows(backend):
    masks = (mask(3, 7), mask(11))
    rows = (row(0, 1), row(1), row(2, 0), row(3, -1))
    assert draw(backend, *rows, masks=masks) == [(11,), (39,), (7,), (39,)]


def test_each_draft_is_judged_under_the_mask_of_its_position(backend):
    masks = (mask(5), mask(6, 8), mask(2))
    kept = row(0, 0, 1, 2, drafts=(5, 8))
    cut = row(1, 0, 1, -1, drafts=(5, 6))
    assert draw(backend, kept, cut, masks=masks) == [(5, 8, 2), (5, 8)]


def test_a_step_without_masks_has_none(backend):
    assert draw(backend, row(0), row(1)) == [(39,), (39,)]


def test_rows_share_masks_and_none_allows_all():
    table = unpack_masks((mask(1), mask(33)), [1, -1, 0, 1], VOCAB)
    assert table.shape == (4, 2)
    assert table.tolist() == [[0, 2], [2**32 - 1] * 2, [2, 0], [0, 2]]


@pytest.mark.parametrize(
    ("masks", "rows"), [((b"1234",), [0]), ((mask(1),), [1]), ((mask(1),), [-2])]
)
def test_masks_that_do_not_fit_are_refused(masks, rows):
    with pytest.raises(KernelError, match="mask"):
        unpack_masks(masks, rows, VOCAB)


@pytest.mark.parametrize(
    ("wrong", "masks"),
    [(row(0, 0, 0), (mask(1),)), (row(0, 0, drafts=(4,)), (mask(1),)), (row(0, 0), ())],
)
def test_the_executor_refuses_rows_whose_masks_do_not_fit(wrong, masks):
    backend = ShapeBackend()
    cache = backend.create_kv_cache(KVLayout(1, 1, 16, 16, DType.F16, (0,), (4,)))
    recorder = backend.recorder(StepLimits(8, 4), cache)
    logits = recorder.buffer(Rows.OUTPUTS, VOCAB)
    parts = ExecutorParts(backend, recorder.finish(), logits, cache)
    executor = ModelExecutor(parts, FakeClock(), max_num_seqs=2, max_tokens=8, max_context=32)
    plan = StepPlan(step_id=1, rows=(wrong,), starts=(start(0),), token_masks=masks)
    with pytest.raises(KernelError, match="mask"):
        executor.execute(plan)
