"""Low-rank adapters in every instruction set: the reference's numbers, whatever rows come along."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.op_run import ISAS, NO_KEYS, rows_only

from headrace.core.errors import KernelError
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.formats import LowRank
from headrace.kernels.packing import pack
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.kernels.values import DType, Rows, StepLimits

N, K, T = 37, 75, 40
RNG = np.random.default_rng(5)
TABLE = RNG.standard_normal((T, K)).astype(np.float32)


def to_bf16(matrix):
    return (matrix.view(np.uint32) & 0xFFFF0000).view(np.float32)


def low_rank(rank, *, is_bf16=False):
    down = RNG.standard_normal((rank, K)).astype(np.float32)
    up = RNG.standard_normal((N, rank)).astype(np.float32)
    return LowRank(to_bf16(down), to_bf16(up)) if is_bf16 else LowRank(down, up)


ENTRIES = (low_rank(1), low_rank(16, is_bf16=True), None, low_rank(33))
MIXED = (RNG.integers(0, 5, T)).astype(np.int32)


def run(backend, dtype, adapters, *, rows=Rows.TOKENS, output_rows=(), row_blocks=False):
    """out = 1 + what the adapters add, with two columns in front that nobody may touch."""
    recorder = backend.recorder(StepLimits(T, T), backend.create_kv_cache(NO_KEYS))
    x = recorder.buffer(Rows.TOKENS, K)
    recorder.embed(backend.load_weight(pack(TABLE)), x)
    if rows is Rows.OUTPUTS:
        gathered = recorder.buffer(rows, K)
        recorder.gather_outputs(x, gathered)
        x = gathered
    operand = x
    if dtype is not DType.F32:
        operand = recorder.buffer(rows, K, dtype)
        recorder.convert(x, operand)
    out = recorder.buffer(rows, N + 3)
    handle = backend.create_adapters(N, K, len(ENTRIES))
    for index, entry in enumerate(ENTRIES, start=1):
        handle.set(index, entry)
    recorder.adapt(operand, handle, out, first_column=2, scale=0.5)
    program = recorder.finish()
    if isinstance(backend, CpuBackend):
        program.set_row_blocks(row_blocks)
    inputs = rows_only(len(adapters)).step_inputs(output_rows)
    if adapters is not None:
        inputs = replace(inputs, adapters=np.array(adapters, np.int32))
    program.run(inputs)
    return program.read(out, len(output_rows) or len(adapters)).copy()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.Q8])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_get_what_the_reference_adds(isa, dtype):
    made = run(CpuBackend(isa, 2), dtype, MIXED)
    wanted = run(ReferenceBackend(), dtype, MIXED)
    # Two chains: of K products, then of the rank's.
    bound = (K + 33) * 2.0**-24 * np.abs(TABLE).sum() / T * 33 * 4
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=bound)
    assert not made[:, :2].any()
    assert not made[:, -1].any()
    assert not made[np.isin(MIXED, (0, 3))].any()
    assert made[MIXED == 4, 2:-1].all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_the_same_alone_in_any_company_and_in_blocks(isa):
    backend = CpuBackend(isa, 2)
    together = run(backend, DType.F32, MIXED)
    alone = CpuBackend(isa, 1)
    for row in range(0, T, 7):
        only = np.zeros(T, np.int32)
        only[row] = MIXED[row]
        np.testing.assert_array_equal(run(alone, DType.F32, only)[row], together[row])
    np.testing.assert_array_equal(run(backend, DType.F32, MIXED, row_blocks=True), together)


@pytest.mark.parametrize("isa", ISAS)
def test_gathered_rows_keep_their_tokens_adapters(isa):
    chosen = (5, 31, 2, 17)
    gathered = run(CpuBackend(isa, 1), DType.F32, MIXED, rows=Rows.OUTPUTS, output_rows=chosen)
    np.testing.assert_array_equal(gathered, run(CpuBackend(isa, 1), DType.F32, MIXED)[list(chosen)])


def test_an_entry_may_be_taken_out_and_another_put_in():
    backend = CpuBackend(ISAS[-1], 1)
    recorder = backend.recorder(StepLimits(T, T), backend.create_kv_cache(NO_KEYS))
    x, out = recorder.buffer(Rows.TOKENS, K), recorder.buffer(Rows.TOKENS, N)
    handle = backend.create_adapters(N, K, 1)
    recorder.adapt(x, handle, out)
    program = recorder.finish()
    inputs = replace(rows_only(1).step_inputs(()), adapters=np.ones(1, np.int32))
    seen = []
    for entry in (ENTRIES[0], None, ENTRIES[3], ENTRIES[0]):
        program.write(x, TABLE[:1])
        program.write(out, np.zeros((1, N), np.float32))
        handle.set(1, entry)
        program.run(inputs)
        seen.append(program.read(out, 1).copy())
    assert not seen[1].any()
    np.testing.assert_array_equal(seen[0], seen[3])
    assert np.abs(seen[2] - seen[0]).max() > 0.1


@pytest.mark.parametrize(
    ("adapters", "sentence"),
    [([5, 0], "outside 0..4"), ([-1, 0], "outside 0..4"), ([1], "one entry per token")],
)
def test_wrong_indices_are_refused(adapters, sentence):
    backend = CpuBackend(ISAS[0], 1)
    recorder = backend.recorder(StepLimits(T, T), backend.create_kv_cache(NO_KEYS))
    x, out = recorder.buffer(Rows.TOKENS, K), recorder.buffer(Rows.TOKENS, N)
    recorder.adapt(x, backend.create_adapters(N, K, 4), out)
    program = recorder.finish()
    inputs = replace(rows_only(2).step_inputs(()), adapters=np.array(adapters, np.int32))
    with pytest.raises((KernelError, ValueError), match=sentence):
        program.run(inputs)
