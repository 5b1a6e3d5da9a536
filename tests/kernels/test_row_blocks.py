"""Steps of many rows run in blocks of rows: the same bits as op after op, and all of it in the profile."""

import numpy as np
import pytest
from tests.support.gemm_cases import random_matrix
from tests.support.op_run import ISAS, Batch, cpu

from headrace.kernels.packing import pack
from headrace.kernels.values import Activation, DType, KVLayout, Rows, StepLimits

HIDDEN, INNER, HEADS, HEAD_SIZE = 64, 96, 4, 16
LAYOUT = KVLayout(2, 2, HEAD_SIZE, 16, DType.F16, (0, 0), (40,))
#: A prompt, decode rows and a continued chunk: enough tokens for blocks with two threads.
BATCH = Batch(
    (150, 1, 1, 120), (0, 37, 63, 20), (np.arange(40, dtype=np.int32).reshape(4, 10),), (0, 1, 2, 3)
)
OPS_OF_A_LAYER = {"rms_norm": 2, "linear": 4, "rotate_and_store": 1, "gated_activation": 1}


def record(backend, kind):
    """Two layers without a head; the program, its residual stream and its cache."""
    rng = np.random.default_rng(5)

    def weight(num_outputs, num_inputs):
        return backend.load_weight(pack(random_matrix(rng, kind, num_outputs, num_inputs)))

    cache = backend.create_kv_cache(LAYOUT)
    recorder = backend.recorder(StepLimits(BATCH.num_tokens, 1), cache)
    table, qkv_weight = weight(BATCH.num_tokens, HIDDEN), weight(8 * HEAD_SIZE, HIDDEN)
    dtype = recorder.operand_dtype(recorder.weight_shape(qkv_weight)[0])
    hidden, qkv = (recorder.buffer(Rows.TOKENS, width) for width in (HIDDEN, 8 * HEAD_SIZE))
    normed, mixed = (recorder.buffer(Rows.TOKENS, HIDDEN, dtype) for _ in range(2))
    gate_up = recorder.buffer(Rows.TOKENS, 2 * INNER)
    active = recorder.buffer(Rows.TOKENS, INNER, dtype)
    rope = recorder.buffer(Rows.TOKENS, HEAD_SIZE)
    ones = backend.load_vector(np.ones(HIDDEN, np.float32))
    recorder.embed(table, hidden)
    recorder.rope_table(rope, backend.load_vector(0.5 ** np.arange(HEAD_SIZE / 2)))
    for layer in range(2):
        recorder.rms_norm(hidden, ones, normed, eps=1e-5)
        recorder.linear(normed, qkv_weight, qkv)
        recorder.rotate_and_store(qkv, rope, layer=layer, num_heads=HEADS)
        recorder.attention(qkv, mixed, layer=layer, num_heads=HEADS, scale=0.25)
        recorder.linear(mixed, weight(HIDDEN, HIDDEN), hidden, accumulate=True)
        recorder.rms_norm(hidden, ones, normed, eps=1e-5)
        recorder.linear(normed, weight(2 * INNER, HIDDEN), gate_up)
        recorder.gated_activation(gate_up, active, kind=Activation.SILU)
        recorder.linear(active, weight(HIDDEN, INNER), hidden, accumulate=True)
    return recorder.finish(), hidden, cache


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["w4g32", "w8g16", "bf16", "f32"])
def test_blocks_change_no_bit(isa, kind):
    results = []
    for uses_blocks, threads in ((False, 2), (True, 1), (True, 2)):
        program, hidden, cache = record(cpu(isa, threads), kind)
        program.set_row_blocks(uses_blocks)
        program.run(BATCH.step_inputs())
        blocks = [cache.export_block(0, block) for block in range(40)]
        results.append((program.read(hidden, BATCH.num_tokens).copy(), np.stack(blocks)))
    assert np.abs(results[0][0]).max() > 0
    assert np.isfinite(results[0][0]).all()
    for rows, blocks in results[1:]:
        np.testing.assert_array_equal(rows, results[0][0])
        np.testing.assert_array_equal(blocks, results[0][1])


@pytest.mark.parametrize("uses_blocks", [False, True])
def test_a_profile_counts_each_op_once(uses_blocks):
    program, _, _ = record(cpu("generic"), "w8g16")
    program.set_row_blocks(uses_blocks)
    program.set_profiling(True)
    program.run(BATCH.step_inputs())
    calls = {op: count for op, (count, _) in program.times().items()}
    expected = {op: 2 * count for op, count in OPS_OF_A_LAYER.items()}
    assert calls == expected | {"attention": 2, "embed": 1, "rope_table": 1}
    assert all(nanoseconds >= 0 for _, nanoseconds in program.times().values())
