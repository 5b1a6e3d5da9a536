"""Adapters per row of a linear: what they add, and what they leave alone."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.op_run import rows_only

from headrace.core.errors import KernelError
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.formats import LowRank, WeightFormat
from headrace.kernels.packing import pack
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.kernels.shapes import ShapeBackend, WeightShape
from headrace.kernels.values import DType, KVLayout, Rows, StepLimits

RNG = np.random.default_rng(3)
N, K, T = 5, 64, 4
LAYOUT = KVLayout(1, 1, 16, 16, DType.F32, (0,), (4,))
EMBEDDINGS = RNG.standard_normal((T, K)).astype(np.float32)
WEIGHT = RNG.standard_normal((N, K)).astype(np.float32)


def low_rank(rank, num_outputs=N, num_inputs=K):
    return LowRank(
        RNG.standard_normal((rank, num_inputs)).astype(np.float32),
        RNG.standard_normal((num_outputs, rank)).astype(np.float32),
    )


FIRST, THIRD = low_rank(2), low_rank(3)
ADAPTERS = (FIRST, None, THIRD)
SCALE = 0.5


def table(backend, entries):
    made = backend.create_adapters(N, K, len(entries))
    for index, entry in enumerate(entries, start=1):
        made.set(index, entry)
    return made


def program(*, adapters=ADAPTERS, rows=Rows.TOKENS):
    """logits = scale * (x . W), beside two columns that nobody writes."""
    backend = ReferenceBackend()
    recorder = backend.recorder(StepLimits(T, T), backend.create_kv_cache(LAYOUT))
    x = recorder.buffer(Rows.TOKENS, K)
    recorder.embed(backend.load_weight(EMBEDDINGS), x)
    if rows is Rows.OUTPUTS:
        gathered = recorder.buffer(rows, K)
        recorder.gather_outputs(x, gathered)
        x = gathered
    out = recorder.buffer(rows, N + 2)
    handle = None if adapters is None else table(backend, adapters)
    weight = backend.load_weight(pack(WEIGHT))
    recorder.linear(x, weight, out, first_column=2, scale=SCALE, adapters=handle)
    return recorder.finish(), out


def run(adapters_of_tokens, output_rows=(), **options):
    made, out = program(**options)
    inputs = rows_only(T).step_inputs(output_rows)
    indices = None if adapters_of_tokens is None else np.array(adapters_of_tokens, np.int32)
    inputs = replace(inputs, token_ids=np.arange(T, dtype=np.int32), adapters=indices)
    made.run(inputs)
    return made.read(out, T)


def expected(row, entry):
    wide = EMBEDDINGS[row].astype(np.float64)
    return SCALE * (WEIGHT @ wide + entry.up @ (entry.down @ wide))


def test_each_row_gets_what_its_own_adapter_adds():
    base = run(None)
    mixed = run([3, 0, 1, 2])
    np.testing.assert_allclose(mixed[0, 2:], expected(0, THIRD), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mixed[2, 2:], expected(2, FIRST), rtol=1e-5, atol=1e-5)
    # The base model, and an adapter that leaves this linear alone: bitwise as without any.
    np.testing.assert_array_equal(mixed[[1, 3]], base[[1, 3]])
    assert not mixed[:, :2].any()


def test_a_row_depends_on_its_own_adapter_only():
    np.testing.assert_array_equal(run([3, 0, 1, 2])[0], run([3, 1, 1, 1])[0])


def test_gathered_rows_keep_their_tokens_adapters():
    gathered = run([3, 0, 1, 2], output_rows=(2, 0), rows=Rows.OUTPUTS)
    np.testing.assert_allclose(gathered[0, 2:], expected(2, FIRST), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gathered[1, 2:], expected(0, THIRD), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("indices", "options", "sentence"),
    [
        ([4, 0, 0, 0], {}, "no adapter 4"),
        ([-1, 0, 0, 0], {}, "not negative"),
        ([0, 1], {}, "differ in length"),
        ([0, 0, 1, 0], {"adapters": None}, "not part of this program"),
    ],
)
def test_adapters_that_a_program_has_not_are_refused(indices, options, sentence):
    with pytest.raises(KernelError, match=sentence):
        run(indices, **options)


@pytest.mark.parametrize(
    ("index", "entry"),
    [(1, low_rank(2, N + 1)), (1, LowRank(FIRST.down, THIRD.up)), (3, FIRST), (0, FIRST)],
    ids=["other linear", "two ranks", "behind the last", "the base model"],
)
@pytest.mark.parametrize(
    "backend", [ReferenceBackend(), CpuBackend("generic", 1)], ids=lambda b: b.name
)
def test_entries_that_do_not_fit_are_refused(backend, index, entry):
    with pytest.raises(KernelError, match="adapter"):
        backend.create_adapters(N, K, 2).set(index, entry)


@pytest.mark.parametrize("backend", [ReferenceBackend(), ShapeBackend()], ids=lambda b: b.name)
def test_a_linear_refuses_adapters_of_another_shape(backend):
    recorder = backend.recorder(StepLimits(T, T), backend.create_kv_cache(LAYOUT))
    x, out = recorder.buffer(Rows.TOKENS, K), recorder.buffer(Rows.TOKENS, N)
    shape = WeightShape(WeightFormat.F32, N, K)
    weight = shape if backend.name == "shapes" else backend.load_weight(pack(WEIGHT))
    recorder.linear(x, weight, out, adapters=table(backend, ADAPTERS))
    with pytest.raises(KernelError, match="the adapters are not"):
        recorder.linear(x, weight, out, adapters=backend.create_adapters(N + 1, K, 1))
