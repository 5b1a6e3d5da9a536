"""Paged attention: a row's result does not depend on its company, bit for bit, on every instruction set."""

import numpy as np
import pytest
from tests.support.attention_cases import Case, filled_cache, run_case
from tests.support.op_run import ISAS, Batch, cpu

from headrace.kernels.values import DType

isas = pytest.mark.parametrize("isa", ISAS)


def rows_by(backend, case, steps):
    """Rows of a one-sequence case, run in steps of the given sizes."""
    qkv, table = case.queries(), case.batch().tables
    cache = filled_cache(backend, case)
    rows, done = [], 0
    for count in steps:
        start = case.key_starts[0] + done
        batch = Batch((count,), (start,), table)
        queries = qkv[done : done + count]
        rows.append(run_case(backend, case, qkv=queries, batch=batch, cache=cache)["out"])
        done += count
    assert done == case.counts[0]
    return np.concatenate(rows)


INVARIANT = {
    "gqa": Case(num_heads=9, num_kv_heads=3, counts=(90,), key_starts=(480,)),
    "long": Case(num_heads=2, num_kv_heads=1, counts=(20,), key_starts=(1530,)),
    "window": Case(window=50, counts=(70,), key_starts=(470,)),
    "wide": Case(head_size=96, kv_dtype=DType.BF16, counts=(40,), key_starts=(0,), soft_cap=20.0),
    "bf16 gqa": Case(
        num_heads=9, num_kv_heads=3, kv_dtype=DType.BF16, counts=(90,), key_starts=(481,)
    ),
    "bf16 window": Case(window=51, kv_dtype=DType.BF16, counts=(70,), key_starts=(470,)),
    "int8 gqa": Case(
        num_heads=9, num_kv_heads=3, kv_dtype=DType.INT8, counts=(90,), key_starts=(481,)
    ),
    "int8 window": Case(window=51, kv_dtype=DType.INT8, counts=(70,), key_starts=(470,)),
    "int16 gqa": Case(
        num_heads=9, num_kv_heads=3, kv_dtype=DType.INT16, counts=(90,), key_starts=(481,)
    ),
    "int16 window": Case(window=51, kv_dtype=DType.INT16, counts=(70,), key_starts=(470,)),
    "q8": Case(out_dtype=DType.Q8, counts=(40,), key_starts=(500,)),
    "given back": Case(counts=(30,), key_starts=(600,), absent=tuple((0, b) for b in range(3, 33))),
}


@isas
@pytest.mark.parametrize("case", INVARIANT.values(), ids=INVARIANT.keys())
def test_whole_chunked_and_one_by_one_agree_bitwise(isa, case):
    total = case.counts[0]
    whole = rows_by(cpu(isa), case, [total])
    chunked = rows_by(cpu(isa), case, [7, 1, 5, total - 13])
    singly = rows_by(cpu(isa), case, [1] * total)
    np.testing.assert_array_equal(chunked, whole)
    np.testing.assert_array_equal(singly, whole)


@isas
@pytest.mark.parametrize("case", INVARIANT.values(), ids=INVARIANT.keys())
def test_one_and_two_threads_agree_bitwise(isa, case):
    total = case.counts[0]
    for steps in ([total], [1] * total):
        one = rows_by(cpu(isa, 1), case, steps)
        two = rows_by(cpu(isa, 2), case, steps)
        np.testing.assert_array_equal(one, two)


@isas
@pytest.mark.parametrize("kv_dtype", [DType.F16, DType.BF16, DType.INT8, DType.INT16])
def test_alone_and_in_a_batch_agree_bitwise(isa, kv_dtype):
    # Enough sequences that a task takes all KV heads, which one sequence alone does not.
    counts, starts = (30, 1, 1, 17, 1, 1, 1, 1), (0, 1300, 200, 510, 3, 77, 640, 15)
    case = Case(counts=counts, key_starts=starts, kv_dtype=kv_dtype)
    qkv, batch = case.queries(), case.batch()
    together = run_case(cpu(isa), case)["out"]
    first = 0
    for s, (count, start) in enumerate(zip(case.counts, case.key_starts, strict=True)):
        alone = Batch((count,), (start,), batch.tables, slots=(s,))
        rows = run_case(cpu(isa), case, qkv=qkv[first : first + count], batch=alone)["out"]
        np.testing.assert_array_equal(rows, together[first : first + count])
        first += count
