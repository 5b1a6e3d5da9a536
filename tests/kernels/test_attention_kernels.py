"""Paged attention of every instruction set against the reference: masks, layouts, dtypes, many chunks."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.attention_cases import Case, filled_cache, run_case
from tests.support.op_run import (
    ISAS,
    assert_close,
    cpu,
    output_tolerance,
    reference,
    run_ops,
)

from headrace.kernels.ops import ATTENTION_CHUNK
from headrace.kernels.values import DType, Rows

isas = pytest.mark.parametrize("isa", ISAS)


#: Of some 10^6 standard normal numbers.
LARGEST = 6.0


def query_error(case):
    """Bound of a query's rounding as a share of its norm: bf16 to 8 bits; int8 by 1/254 of the largest.

    int16: each element by half of 1/32752 of the norm.
    """
    if case.kv_dtype is DType.INT16:
        return 0.51 * np.sqrt(case.head_size) / 32752
    if case.kv_dtype is DType.INT8:
        return LARGEST / 254 * np.sqrt(case.head_size) / (np.sqrt(case.head_size) - 2)
    return 2.0**-9 if case.kv_dtype is DType.BF16 else 0.0


def score_error(case):
    """Bound of a score's error: the query's; a chain of D products, each sum rounded; scale and cap.

    |q . k| <= |q| |k|; norms of standard normal vectors stay below sqrt(D) + 4.
    """
    norm = np.sqrt(case.head_size) + 4
    relative = (case.head_size + 4) * 2.0**-24 + query_error(case)
    return relative * norm * norm * case.head_size**-0.5


def attention_error(case):
    """Bound of an output's error: weights are off by a factor e^(2 * score error), sums are rounded.

    Weights themselves are rounded to bf16, or by half of 1/32767 of the chunk's largest each, times values
    that reach 127 steps, or (steps of int16 are powers of two) half as many as there are.
    """
    keys = max(s + c for s, c in zip(case.key_starts, case.counts, strict=True))
    chunks = keys / ATTENTION_CHUNK + 1
    units = min(keys, ATTENTION_CHUNK) * chunks / 2
    rounding = {
        DType.BF16: 2.0**-8,
        DType.INT8: units / 32767,
        DType.INT16: 2 * units / 32767,
    }
    sums = (ATTENTION_CHUNK + 8 * chunks) * 2.0**-24 + rounding.get(case.kv_dtype, 0.0)
    return (2 * score_error(case) + sums) * LARGEST


INT8_CASES = {
    "int8": Case(kv_dtype=DType.INT8, block_size=64),
    "int8, odd": Case(kv_dtype=DType.INT8, head_size=21, counts=(35, 1), key_starts=(3, 520)),
    "int8 prefill": Case(kv_dtype=DType.INT8, counts=(70, 33), key_starts=(0, 501)),
    "int8 wide": Case(kv_dtype=DType.INT8, head_size=256, num_heads=4, num_kv_heads=1),
    "int8 window": Case(
        kv_dtype=DType.INT8, window=23, counts=(60, 1, 1), key_starts=(10, 700, 5), soft_cap=9.0
    ),
    "int8 given back": Case(
        kv_dtype=DType.INT8,
        counts=(4, 1),
        key_starts=(100, 1200),
        absent=((0, 1), (1, 0), *((1, b) for b in range(32, 70))),
    ),
}

CASES = {
    "plain": Case(),
    "one head": Case(num_heads=1, num_kv_heads=1),
    "multi head": Case(num_heads=4, num_kv_heads=4),
    "seven per kv head": Case(num_heads=14, num_kv_heads=2, head_size=32),
    "many per kv head": Case(
        num_heads=64, num_kv_heads=1, head_size=16, counts=(3, 1), key_starts=(30, 2)
    ),
    "head 16": Case(head_size=16),
    "head 20": Case(head_size=20),
    "head 80": Case(head_size=80),
    "head 96": Case(head_size=96, kv_dtype=DType.BF16),
    "head 128": Case(head_size=128, block_size=32),
    "head 256": Case(head_size=256, num_heads=4, num_kv_heads=1),
    "f32": Case(kv_dtype=DType.F32, block_size=32),
    "bf16": Case(kv_dtype=DType.BF16, block_size=64),
    "bf16, odd": Case(kv_dtype=DType.BF16, head_size=21, counts=(35, 1), key_starts=(3, 520)),
    "bf16 prefill": Case(kv_dtype=DType.BF16, counts=(70, 33), key_starts=(0, 501)),
    "bf16 window": Case(kv_dtype=DType.BF16, window=23, counts=(60, 1, 1), key_starts=(10, 700, 5)),
    "bf16 not causal window": Case(
        kv_dtype=DType.BF16, is_causal=False, window=7, counts=(50,), key_starts=(4,)
    ),
    **INT8_CASES,
    **{
        name.replace("int8", "int16"): replace(case, kv_dtype=DType.INT16)
        for name, case in INT8_CASES.items()
    },
    "prefill": Case(counts=(70, 33), key_starts=(0, 0)),
    "chunked prefill": Case(counts=(50, 40, 1), key_starts=(13, 500, 1100)),
    "long": Case(counts=(1, 1, 3), key_starts=(2600, 511, 512), num_heads=2, num_kv_heads=1),
    "window": Case(window=24, counts=(60, 1, 1), key_starts=(10, 700, 5)),
    "window of one": Case(window=1, counts=(20, 1), key_starts=(3, 600)),
    "window over chunks": Case(window=600, counts=(9, 1), key_starts=(1100, 1500)),
    "soft cap": Case(soft_cap=5.0, counts=(20, 1), key_starts=(7, 530)),
    "not causal": Case(is_causal=False, counts=(33, 5), key_starts=(0, 9)),
    "not causal window": Case(is_causal=False, window=7, counts=(50,), key_starts=(4,)),
    "given back": Case(
        counts=(4, 1),
        key_starts=(100, 1200),
        absent=((0, 1), (0, 2), (1, 0), *((1, b) for b in range(32, 70))),
    ),
    "window given back": Case(
        window=40,
        counts=(30, 1),
        key_starts=(100, 900),
        absent=((0, 0), *((1, b) for b in range(53))),
    ),
}


@isas
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_against_the_reference(isa, case):
    expected = run_case(reference(), case)["out"]
    actual = run_case(cpu(isa), case)["out"]
    assert_close(actual, expected, attention_error(case))


@isas
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.Q8])
@pytest.mark.parametrize("head_size", [16, 20, 64, 96])
def test_output_dtypes(isa, dtype, head_size):
    case = Case(out_dtype=dtype, head_size=head_size, counts=(40, 1, 3), key_starts=(0, 50, 30))
    expected = run_case(reference(), case)["out"]
    actual = run_case(cpu(isa), case)["out"]
    tolerance = output_tolerance(expected, dtype, 0.0) + 3 * attention_error(case)
    assert_close(actual, expected, tolerance)


@isas
@pytest.mark.parametrize(
    "case", [CASES["chunked prefill"], CASES["window over chunks"], CASES["given back"]]
)
def test_mass(isa, case):
    expected = run_case(reference(), case, with_mass=True)
    actual = run_case(cpu(isa), case, with_mass=True)
    heads = case.num_heads / case.num_kv_heads
    assert_close(actual["out"], expected["out"], attention_error(case))
    assert_close(actual["mass"], expected["mass"], attention_error(case) * heads)
    per_token = actual["mass"].reshape(len(actual["mass"]), case.num_kv_heads, -1).sum(axis=2)
    np.testing.assert_allclose(per_token, heads, rtol=1e-4)


@pytest.mark.parametrize("name", ["reference", *ISAS])
def test_mass_is_added_to_what_is_there(name):
    """As each layer does but the first."""
    case = CASES["window over chunks"]
    backend = reference() if name == "reference" else cpu(name)
    batch = case.batch()

    def ops(recorder, buffers):
        out = recorder.buffer(Rows.TOKENS, case.num_heads * case.head_size)
        width = case.num_kv_heads * batch.tables[0].shape[1]
        masses = [recorder.buffer(Rows.TOKENS, width) for _ in range(2)]
        fields = {"layer": 0, "num_heads": case.num_heads, "scale": 0.2, "window": case.window}
        for mass, adds_mass in ((0, False), (1, False), (1, True), (1, True)):
            recorder.attention(
                buffers["qkv"], out, mass=masses[mass], adds_mass=adds_mass, **fields
            )
        return {"once": masses[0], "thrice": masses[1]}

    cache = filled_cache(backend, case, None)
    found = run_ops(backend, {"qkv": case.queries()}, ops, batch=batch, kv_cache=cache)
    assert_close(found["thrice"], 3 * found["once"], 1e-5)


@isas
def test_mass_of_an_int8_cache_sums_to_one(isa):
    case = CASES["int8 given back"]
    actual = run_case(cpu(isa), case, with_mass=True)["mass"]
    expected = run_case(reference(), case, with_mass=True)["mass"]
    heads = case.num_heads / case.num_kv_heads
    assert_close(actual, expected, heads * (np.exp(2 * score_error(case)) - 1))
    per_token = actual.reshape(len(actual), case.num_kv_heads, -1).sum(axis=2)
    np.testing.assert_allclose(per_token, heads, rtol=1e-4)


@isas
@pytest.mark.parametrize("fault", [np.nan, np.inf])
@pytest.mark.parametrize(
    "case",
    [
        CASES["prefill"],
        CASES["bf16 prefill"],
        CASES["bf16 window"],
        CASES["int8 prefill"],
        CASES["int8 window"],
        CASES["int16 prefill"],
        CASES["int16 window"],
        CASES["chunked prefill"],
        CASES["window"],
        Case(counts=(1, 37), key_starts=(33, 515), kv_dtype=DType.F32),
    ],
)
def test_memory_that_no_token_wrote_is_never_read_into_a_result(isa, fault, case):
    clean = run_case(cpu(isa), case)["out"]
    dirty = run_case(cpu(isa), case, blocks=case.blocks(fault))["out"]
    np.testing.assert_array_equal(dirty, clean)


@isas
@pytest.mark.parametrize("kv_dtype", [DType.F32, DType.F16, DType.BF16, DType.INT8, DType.INT16])
def test_a_later_token_with_a_fault_does_not_reach_an_earlier_one(isa, kv_dtype):
    case = Case(counts=(40,), key_starts=(0,), kv_dtype=kv_dtype)
    blocks = case.blocks()
    table = case.batch().tables[0][0]
    blocks[table[1], ..., 9, :] = np.nan  # key 25
    clean = run_case(cpu(isa), case)["out"]
    dirty = run_case(cpu(isa), case, blocks=blocks)["out"]
    np.testing.assert_array_equal(dirty[:25], clean[:25])
    assert np.isnan(dirty[25:]).all()


@isas
@pytest.mark.parametrize("head_size", [16, 64, 256, 1024])
def test_products_of_int16_keys_do_not_overflow(isa, head_size):
    # Key 0 is the query, key 1 its opposite: the largest products that there are, of all elements alike.
    case = Case(1, 1, head_size, kv_dtype=DType.INT16, counts=(1,), key_starts=(1,))
    blocks = case.blocks()
    blocks[:, 0, 0, 0, 0], blocks[:, 0, 0, 0, 1] = 1.9999, -1.9999
    blocks[:, 1, 0, 0, 0], blocks[:, 1, 0, 0, 1] = 3.0, -3.0
    qkv = np.full((1, 3 * head_size), 1.9999, np.float32)
    actual = run_case(cpu(isa), case, qkv=qkv, blocks=blocks)["out"]
    np.testing.assert_allclose(actual, 3.0, rtol=1e-3)


@isas
@pytest.mark.parametrize("num_keys", [2, 511, 512, 600])
def test_sums_of_int16_values_do_not_overflow(isa, num_keys):
    # Keys that count alike, and values of the largest code that there is.
    case = Case(1, 1, 16, kv_dtype=DType.INT16, counts=(1,), key_starts=(num_keys - 1,))
    largest = np.float32(8191 / 4096)
    blocks = np.full_like(case.blocks(), largest)
    blocks[:, 0] = 1.0
    qkv = np.concatenate([np.ones(32), np.full(16, largest)]).astype(np.float32)[None]
    actual = run_case(cpu(isa), case, qkv=qkv, blocks=blocks)["out"]
    np.testing.assert_allclose(actual, largest, rtol=1.001 * 512 / 2**19)


@isas
def test_scores_of_any_size_give_weights_that_sum_to_one(isa):
    case = Case(counts=(20, 1), key_starts=(0, 600), kv_dtype=DType.F32)
    qkv = case.queries() * 1000
    actual = run_case(cpu(isa), case, qkv=qkv, with_mass=True)
    assert np.abs(actual["out"]).max() <= np.abs(case.blocks()).max()
    per_token = actual["mass"].reshape(21, case.num_kv_heads, -1).sum(axis=2)
    np.testing.assert_allclose(per_token, case.num_heads / case.num_kv_heads, rtol=1e-5)
