"""The ops that only encoders have, in every instruction set: against the reference, and against themselves."""

import numpy as np
import pytest
from tests.support.gemm_cases import random_matrix
from tests.support.op_run import (
    ISAS,
    Batch,
    assert_close,
    cpu,
    output_tolerance,
    reference,
    run_ops,
)

from headrace.core.errors import KernelError
from headrace.kernels.packing import pack
from headrace.kernels.values import KV_ONLY_DTYPES, Activation, DType, KVLayout, Rows, StepLimits

WIDTHS = [1, 16, 33, 64, 100, 384, 1000]

isas = pytest.mark.parametrize("isa", ISAS)
DTYPES = [dtype for dtype in DType if dtype not in KV_ONLY_DTYPES]
dtypes = pytest.mark.parametrize("dtype", DTYPES)
widths = pytest.mark.parametrize("width", WIDTHS)


def rows_of(num_rows, width, seed=0, scale=1.0):
    return np.random.default_rng(seed).standard_normal((num_rows, width), dtype=np.float32) * scale


def both(isa, inputs, record):
    """The outputs of the reference and of a cpu back end; `record(backend)` makes the recording."""
    expected = run_ops(reference(), inputs, record(reference()))
    fast = cpu(isa)
    return expected["out"], run_ops(fast, inputs, record(fast))["out"]


@isas
@dtypes
@widths
def test_layer_norm(isa, dtype, width):
    weight, bias = rows_of(2, width, seed=1)
    inputs = {"x": rows_of(5, width, scale=3.0) + np.float32(0.5)}

    def record(backend):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, width, dtype)
            vectors = backend.load_vector(weight), backend.load_vector(bias)
            recorder.layer_norm(buffers["x"], *vectors, out, eps=1e-5)
            return {"out": out}

        return ops

    expected, actual = both(isa, inputs, record)
    # The mean is off by its sum's roundings; that error meets the factor and the weight.
    size = np.abs(inputs["x"]).max() * (width / 16 + 8) * 2.0**-23
    spread = inputs["x"].astype(np.float64).std(axis=1, keepdims=True) + 1e-5**0.5
    tolerance = output_tolerance(expected, dtype, (width / 16 + 16) * 2.0**-23)
    drift = size / spread * np.abs(weight).max() + 2.0**-22 * np.abs(bias).max()
    assert_close(actual, expected, tolerance + 4 * drift)


@isas
def test_layer_norm_in_place_is_the_same_to_the_bit(isa):
    weight, bias = rows_of(2, 100, seed=1)

    def run(in_place):
        backend = cpu(isa)

        def ops(recorder, buffers):
            out = buffers["x"] if in_place else recorder.buffer(Rows.TOKENS, 100)
            vectors = backend.load_vector(weight), backend.load_vector(bias)
            recorder.layer_norm(buffers["x"], *vectors, out, eps=1e-5)
            return {"out": out}

        return run_ops(backend, {"x": rows_of(3, 100)}, ops)["out"]

    np.testing.assert_array_equal(run(True), run(False))


@isas
def test_the_variance_of_large_equal_values_does_not_cancel(isa):
    x = np.full((1, 64), 4096.0, np.float32)
    x[0, 0] = 4097.0
    ones, zeros = np.ones(64, np.float32), np.zeros(64, np.float32)

    def record(backend):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, 64)
            vectors = backend.load_vector(ones), backend.load_vector(zeros)
            recorder.layer_norm(buffers["x"], *vectors, out, eps=1e-12)
            return {"out": out}

        return ops

    expected, actual = both(isa, {"x": x}, record)
    np.testing.assert_allclose(actual, expected, rtol=0.02)


@isas
@dtypes
@pytest.mark.parametrize("kind", list(Activation))
@widths
def test_activation(isa, dtype, kind, width):
    x = rows_of(4, width, scale=3.0)
    x[1] *= 30  # saturated
    x[2] = 0.0

    def record(_):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, width, dtype)
            recorder.activation(buffers["x"], out, kind=kind)
            return {"out": out}

        return ops

    expected, actual = both(isa, {"x": x}, record)
    # As for the gated form: the exponential's argument, a square or a cube here, is rounded.
    size = np.minimum(np.abs(x), 90)
    relative = 2 * size * (1 + size**2 / 4 * (kind is not Activation.SILU)) + 24
    largest = np.abs(expected)
    if dtype is DType.Q8:
        largest = largest.max(axis=1, keepdims=True)
    tolerance = output_tolerance(expected, dtype, 0.0)
    tolerance = tolerance + np.minimum(relative, 2e4) * 2.0**-24 * largest + 1e-30
    assert_close(actual, expected, tolerance)


@isas
def test_gelu_where_it_is_hard(isa):
    """Around zero, and in the far tail where 1 + erf would cancel."""
    x = np.concatenate([np.linspace(-12, 12, 4801), np.geomspace(1e-30, 1, 99)])
    x = x.astype(np.float32)[None]

    def record(_):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, x.shape[1])
            recorder.activation(buffers["x"], out, kind=Activation.GELU)
            return {"out": out}

        return ops

    expected, actual = both(isa, {"x": x}, record)
    assert_close(actual, expected, 4e-7 * np.abs(expected) + 2e-7 * (np.abs(x) > 0.5) + 1e-37)
    near = np.abs(x) < 5
    np.testing.assert_allclose(actual[near], expected[near], rtol=6e-6)


@isas
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_faults_stay_visible_and_in_their_row(isa, fault):
    x = rows_of(3, 64)
    x[1, 40] = fault
    ones = np.ones(64, np.float32)
    backend = cpu(isa)

    def ops(recorder, buffers):
        out, normed = (recorder.buffer(Rows.TOKENS, 64) for _ in range(2))
        recorder.activation(buffers["x"], out, kind=Activation.GELU)
        vectors = backend.load_vector(ones), backend.load_vector(ones)
        recorder.layer_norm(buffers["x"], *vectors, normed, eps=1e-5)
        return {"out": out, "normed": normed}

    made = run_ops(backend, {"x": x}, ops)
    for rows in made.values():
        assert np.isfinite(rows[[0, 2]]).all()
    assert np.isnan(made["normed"][1]).any()
    if np.isnan(fault):
        assert np.isnan(made["out"][1, 40])


@isas
@widths
def test_add_positions(isa, width):
    table = rows_of(40, width, seed=3)
    x = rows_of(9, width)
    batch = Batch((4, 5), (30, 2), (np.arange(8, dtype=np.int32).reshape(2, 4),))

    def run(backend):
        def ops(recorder, buffers):
            recorder.add_positions(backend.load_vector(table.reshape(-1)), buffers["x"])
            return {"out": buffers["x"]}

        layout = KVLayout(1, 1, 16, 16, DType.F32, (0,), (8,))
        cache = backend.create_kv_cache(layout)
        return run_ops(backend, {"x": x}, ops, batch=batch, kv_cache=cache)["out"]

    positions = [30, 31, 32, 33, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(run(reference()), x + table[positions])
    np.testing.assert_array_equal(run(cpu(isa)), x + table[positions])


@pytest.mark.parametrize("make", [reference, lambda: cpu(ISAS[-1])])
def test_positions_beyond_the_table_are_refused(make):
    backend = make()

    def ops(recorder, buffers):
        recorder.add_positions(backend.load_vector(np.zeros(3 * 16, np.float32)), buffers["x"])
        return {"out": buffers["x"]}

    run_ops(backend, {"x": rows_of(3, 16)}, ops)
    with pytest.raises(KernelError, match="positions"):
        run_ops(backend, {"x": rows_of(4, 16)}, ops)


def test_wrong_shapes_are_refused_when_recorded():
    backend = reference()
    vector = backend.load_vector(np.ones(16, np.float32))

    def with_record(record):
        return lambda: run_ops(backend, {"x": rows_of(2, 20)}, record)

    def norm(recorder, buffers):
        recorder.layer_norm(buffers["x"], vector, vector, buffers["x"], eps=1e-5)

    def positions(recorder, buffers):
        recorder.add_positions(vector, buffers["x"])

    def act(recorder, buffers):
        recorder.activation(buffers["x"], recorder.buffer(Rows.TOKENS, 21), kind=Activation.GELU)

    for record, match in ((norm, "vector of 20"), (positions, "rows of 20"), (act, "out")):
        with pytest.raises(KernelError, match=match):
            with_record(record)()


# ---- rows alone, in company and in blocks --------------------------------------------------------

HIDDEN, INNER, HEADS, HEAD_SIZE = 64, 96, 4, 16
LAYOUT = KVLayout(1, HEADS, HEAD_SIZE, 16, DType.F32, (0,), (40,))


def run_layers(backend, kind, batch, ids, *, uses_blocks=True):
    """Two post-norm layers that share one layer of scratch keys, as an encoder's do."""
    rng = np.random.default_rng(5)

    def weight(num_outputs, num_inputs):
        return backend.load_weight(pack(random_matrix(rng, kind, num_outputs, num_inputs)))

    recorder = backend.recorder(StepLimits(batch.num_tokens, 1), backend.create_kv_cache(LAYOUT))
    table, qkv_weight = weight(300, HIDDEN), weight(3 * HIDDEN, HIDDEN)
    dtype = recorder.operand_dtype(recorder.weight_shape(qkv_weight)[0])
    hidden, qkv, inner = (
        recorder.buffer(Rows.TOKENS, width) for width in (HIDDEN, 3 * HIDDEN, INNER)
    )
    operand, mixed = (recorder.buffer(Rows.TOKENS, HIDDEN, dtype) for _ in range(2))
    active = recorder.buffer(Rows.TOKENS, INNER, dtype)
    rope = recorder.buffer(Rows.TOKENS, 2)
    ones = backend.load_vector(np.ones(HIDDEN, np.float32))
    recorder.embed(table, hidden)
    recorder.add_positions(backend.load_vector(rng.standard_normal(160 * HIDDEN)), hidden)
    recorder.rope_table(rope, backend.load_vector(np.zeros(1)))
    for _ in range(2):
        recorder.convert(hidden, operand)
        recorder.linear(operand, qkv_weight, qkv)
        recorder.rotate_and_store(qkv, rope, layer=0, num_heads=HEADS)
        recorder.attention(qkv, mixed, layer=0, num_heads=HEADS, scale=0.25, is_causal=False)
        recorder.linear(mixed, weight(HIDDEN, HIDDEN), hidden, accumulate=True)
        recorder.layer_norm(hidden, ones, ones, hidden, eps=1e-5)
        recorder.convert(hidden, operand)
        recorder.linear(operand, weight(INNER, HIDDEN), inner)
        recorder.activation(inner, active, kind=Activation.GELU)
        recorder.linear(active, weight(HIDDEN, INNER), hidden, accumulate=True)
        recorder.layer_norm(hidden, ones, ones, hidden, eps=1e-5)
    program = recorder.finish()
    program.set_row_blocks(uses_blocks)
    inputs = batch.step_inputs()
    inputs.token_ids[:] = ids
    program.run(inputs)
    return program.read(hidden, batch.num_tokens).copy()


@isas
@pytest.mark.parametrize("kind", ["w8g32", "bf16", "f32"])
def test_a_text_is_the_same_to_the_bit_in_any_company(isa, kind):
    ids = np.random.default_rng(1).integers(0, 300, 271).astype(np.int32)
    tables = (np.arange(40, dtype=np.int32).reshape(4, 10),)
    batch = Batch((150, 1, 20, 100), (0, 0, 0, 0), tables)
    together = run_layers(cpu(isa, 2), kind, batch, ids)
    assert np.isfinite(together).all()
    unblocked = run_layers(cpu(isa, 2), kind, batch, ids, uses_blocks=False)
    np.testing.assert_array_equal(unblocked, together)
    start = 0
    for count in batch.counts:
        alone = Batch((count,), (0,), (tables[0][3:],))
        rows = run_layers(cpu(isa, 1), kind, alone, ids[start : start + count])
        np.testing.assert_array_equal(rows, together[start : start + count])
        start += count
