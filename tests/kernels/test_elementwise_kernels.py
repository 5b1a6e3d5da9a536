"""Elementwise kernels of every instruction set against the reference, and against themselves."""

import numpy as np
import pytest
from tests.support.op_run import (
    ISAS,
    assert_close,
    cpu,
    output_tolerance,
    reference,
    run_ops,
)

from headrace.kernels.values import KV_ONLY_DTYPES, Activation, DType, Rows

WIDTHS = [1, 16, 33, 64, 100, 576, 1000]
DTYPES = [dtype for dtype in DType if dtype not in KV_ONLY_DTYPES]

isas = pytest.mark.parametrize("isa", ISAS)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def rows_of(num_rows, width, seed=0, scale=1.0):
    return np.random.default_rng(seed).standard_normal((num_rows, width), dtype=np.float32) * scale


def both(isa, inputs, record):
    """The outputs of the reference and of a cpu back end; `record(backend)` makes the recording."""
    expected = run_ops(reference(), inputs, record(reference()))
    fast = cpu(isa)
    return expected, run_ops(fast, inputs, record(fast))


@isas
@dtypes
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(isa, dtype, width):
    weight = rows_of(1, width, seed=1)[0]
    inputs = {"x": rows_of(5, width, scale=3.0)}

    def record(backend):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, width, dtype)
            recorder.rms_norm(buffers["x"], backend.load_vector(weight), out, eps=1e-5)
            return {"out": out}

        return ops

    expected, actual = both(isa, inputs, record)
    # The sum of squares has width additions in a tree at least 16 wide, all of one sign.
    relative = (width / 16 + 8) * 2.0**-24
    assert_close(actual["out"], expected["out"], output_tolerance(expected["out"], dtype, relative))


@isas
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_add(isa, width):
    weight = rows_of(1, width, seed=1)[0]
    inputs = {"x": rows_of(5, width, scale=0.01), "out": rows_of(5, width, seed=2)}

    def record(backend):
        def ops(recorder, buffers):
            vector = backend.load_vector(weight)
            recorder.rms_norm_add(buffers["x"], vector, buffers["out"], eps=1e-6)
            return {"out": buffers["out"]}

        return ops

    expected, actual = both(isa, inputs, record)
    added = np.abs(expected["out"] - inputs["out"])
    tolerance = (width / 16 + 8) * 2.0**-24 * added + 2.0**-23 * np.abs(expected["out"]) + 1e-37
    assert_close(actual["out"], expected["out"], tolerance)


@isas
@dtypes
@pytest.mark.parametrize("width", WIDTHS)
def test_convert_rounds_exactly_as_the_reference(isa, dtype, width):
    x = rows_of(6, width, scale=10.0)
    x[1] *= 1e-6
    x[2] *= 1e4
    x[3] = 0.0
    x[4, ::3] = 65520.0 if dtype is DType.F16 else 1e38

    def record(_):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, width, dtype)
            recorder.convert(buffers["x"], out)
            return {"out": out}

        return ops

    expected, actual = both(isa, {"x": x}, record)
    np.testing.assert_array_equal(actual["out"], expected["out"])


@isas
@dtypes
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_faults_stay_visible_and_in_their_row(isa, dtype, fault):
    x = rows_of(3, 64)
    x[1, 40] = fault

    def ops(recorder, buffers):
        out = recorder.buffer(Rows.TOKENS, 64, dtype)
        recorder.convert(buffers["x"], out)
        return {"out": out}

    out = run_ops(cpu(isa), {"x": x}, ops)["out"]
    assert np.isfinite(out[[0, 2]]).all()
    assert np.isfinite(out[1, :32]).all()
    assert not np.isfinite(out[1, 40])


@isas
@dtypes
@pytest.mark.parametrize("kind", list(Activation))
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_activation(isa, dtype, kind, width):
    x = rows_of(4, 2 * width, scale=3.0)
    x[1, :width] *= 30  # saturated gates
    x[2, :width] = 0.0

    def record(_):
        def ops(recorder, buffers):
            out = recorder.buffer(Rows.TOKENS, width, dtype)
            recorder.gated_activation(buffers["x"], out, kind=kind)
            return {"out": out}

        return ops

    expected, actual = both(isa, {"x": x}, record)
    # e^u is off by |u| roundoffs for the rounding of its argument, and a few for itself; gates whose
    # exponential leaves float32 (below e^-87) count as zero.
    gate = np.abs(x[:, :width])
    relative = 2 * np.minimum(gate, 90) * (1 + gate**2 / 4 * (kind is not Activation.SILU)) + 16
    tolerance = output_tolerance(expected["out"], dtype, 0.0)
    largest = np.abs(expected["out"])
    if dtype is DType.Q8:
        largest = np.abs(expected["out"]).max(axis=1, keepdims=True)
    tolerance = tolerance + np.minimum(relative, 2e4) * 2.0**-24 * largest + 1e-30
    assert_close(actual["out"], expected["out"], tolerance)


@isas
def test_gather_outputs(isa):
    x = rows_of(7, 50)

    def ops(recorder, buffers):
        out = recorder.buffer(Rows.OUTPUTS, 50)
        recorder.gather_outputs(buffers["x"], out)
        return {"out": out}

    rows = [6, 0, 3, 3]
    out = run_ops(cpu(isa), {"x": x}, ops, output_rows=rows)["out"]
    np.testing.assert_array_equal(out, x[rows])


@isas
@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
@pytest.mark.parametrize("width", [33, 9000])
def test_soft_cap(isa, cap, width):
    x = rows_of(3, width, scale=40.0)
    x[0, :3] = [1e-4, -1e-4, 1e30]

    def record(_):
        def ops(recorder, buffers):
            recorder.soft_cap(buffers["x"], cap=cap)
            return {"x": buffers["x"]}

        return ops

    expected, actual = both(isa, {"x": x}, record)
    # tanh within 4 last places, its argument and the product within one each.
    assert_close(actual["x"], expected["x"], 8 * 2.0**-23 * np.abs(expected["x"]) + 1e-37)


@isas
@pytest.mark.parametrize("kind", ["rms_norm", "gated_activation", "convert"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8])
def test_a_row_does_not_depend_on_its_company_nor_on_threads(isa, kind, dtype):
    x = rows_of(70, 1152)
    weight = rows_of(1, 1152, seed=1)[0]

    def result(backend, rows):
        def ops(recorder, buffers):
            width = 576 if kind == "gated_activation" else 1152
            out = recorder.buffer(Rows.TOKENS, width, dtype)
            if kind == "rms_norm":
                recorder.rms_norm(buffers["x"], backend.load_vector(weight), out, eps=1e-5)
            elif kind == "convert":
                recorder.convert(buffers["x"], out)
            else:
                recorder.gated_activation(buffers["x"], out, kind=Activation.SILU)
            return {"out": out}

        return run_ops(backend, {"x": rows}, ops)["out"]

    together = result(cpu(isa, 2), x)
    np.testing.assert_array_equal(result(cpu(isa, 1), x), together)
    for row in (0, 37, 69):
        np.testing.assert_array_equal(result(cpu(isa, 2), x[row : row + 1])[0], together[row])
