"""The back end without arithmetic, and the shape checks that every recorder makes."""

import numpy as np
import pytest
from tests.support.op_run import rows_only

from headrace.core.errors import KernelError
from headrace.kernels.formats import WeightFormat
from headrace.kernels.shapes import ShapeBackend, WeightShape
from headrace.kernels.values import Activation, DType, KVLayout, Rows, StepLimits

LAYOUT = KVLayout(2, 2, 16, 16, DType.F16, (0, 1), (5, 3))


@pytest.fixture
def backend():
    return ShapeBackend()


@pytest.fixture
def recorder(backend):
    return backend.recorder(StepLimits(8, 2), backend.create_kv_cache(LAYOUT))


def test_a_recording_keeps_ops_and_sizes_its_arena(backend, recorder):
    x = recorder.buffer(Rows.TOKENS, 64)
    narrow = recorder.buffer(Rows.TOKENS, 64, DType.Q8)
    logits = recorder.buffer(Rows.OUTPUTS, 100)
    recorder.embed(WeightShape(WeightFormat.W4G32, 100, 64), x, scale=2.0)
    recorder.rms_norm(x, backend.load_vector(np.ones(64, np.float32)), narrow, eps=1e-6)
    program = recorder.finish()
    assert [op.name for op in program.ops] == ["embed", "rms_norm"]
    assert program.ops[0].arguments["scale"] == 2.0
    assert program.arena_bytes == 8 * 64 * 4 + 8 * (64 + 8) + 2 * 100 * 4
    program.run(rows_only(8).step_inputs())
    assert program.num_runs == 1
    assert program.read(logits, 2).shape == (2, 100)
    with pytest.raises(KernelError, match="9 tokens"):
        program.run(rows_only(9).step_inputs())


def test_shapes_that_do_not_fit_are_refused(backend, recorder):
    x, y = recorder.buffer(Rows.TOKENS, 64), recorder.buffer(Rows.TOKENS, 32)
    rows = recorder.buffer(Rows.OUTPUTS, 64)
    narrow = recorder.buffer(Rows.TOKENS, 64, DType.BF16)
    weight = WeightShape(WeightFormat.W8G32, 32, 64)
    qkv = recorder.buffer(Rows.TOKENS, (4 + 4) * 16)
    refused = [
        lambda: recorder.rms_norm(x, 63, narrow, eps=1e-6),
        lambda: recorder.rms_norm(narrow, 64, x, eps=1e-6),
        lambda: recorder.rms_norm(x, 64, y, eps=1e-6),
        lambda: recorder.convert(x, rows),
        lambda: recorder.gated_activation(x, x, kind=Activation.SILU),
        lambda: recorder.gather_outputs(x, y),
        lambda: recorder.embed(weight, y),
        lambda: recorder.linear(x, weight, y),  # w8 takes q8 rows
        lambda: recorder.linear(narrow, WeightShape(WeightFormat.F32, 32, 64), y),
        lambda: recorder.linear(x, WeightShape(WeightFormat.F32, 32, 64), y, first_column=1),
        lambda: recorder.linear(x, WeightShape(WeightFormat.F32, 32, 64), y, bias=31),
        lambda: recorder.rope_table(x, 31),
        lambda: recorder.rotate_and_store(qkv, x, layer=0, num_heads=4),
        lambda: recorder.rotate_and_store(qkv, y, layer=0, num_heads=3),
        lambda: recorder.attention(qkv, x, layer=0, num_heads=3, scale=1.0),
        lambda: recorder.attention(qkv, x, layer=2, num_heads=4, scale=1.0),
        lambda: recorder.buffer(Rows.TOKENS, 0),
    ]
    for refuse in refused:
        with pytest.raises(KernelError):
            refuse()
    recorder.attention(qkv, x, layer=1, num_heads=4, scale=1.0)


def test_buffers_of_another_recorder_are_refused(backend, recorder):
    other = backend.recorder(StepLimits(8, 2), backend.create_kv_cache(LAYOUT))
    other.buffer(Rows.TOKENS, 16)
    foreign = other.buffer(Rows.TOKENS, 64)
    with pytest.raises(KernelError, match="another recorder"):
        recorder.soft_cap(foreign, cap=30.0)


def test_the_cache_checks_groups_blocks_and_shapes(backend):
    cache = backend.create_kv_cache(LAYOUT)
    assert cache.export_block(1, 2).shape == (2, 1, 2, 16, 16)
    cache.import_block(0, 4, np.zeros((2, 1, 2, 16, 16), np.float32))
    cache.copy_block(0, 0, 4)
    for call in (
        lambda: cache.export_block(2, 0),
        lambda: cache.copy_block(1, 0, 3),
        lambda: cache.import_block(0, 0, np.zeros((2, 2, 2, 16, 16), np.float32)),
    ):
        with pytest.raises(KernelError):
            call()
