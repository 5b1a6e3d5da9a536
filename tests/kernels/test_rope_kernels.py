"""rope_table and rotate_and_store, and the paged cache they write."""

import numpy as np
import pytest
from tests.support.op_run import (
    ISAS,
    ROUNDOFF,
    Batch,
    assert_close,
    cpu,
    reference,
    run_ops,
)

from headrace.core.errors import KernelError
from headrace.kernels.values import KV_ONLY_DTYPES, DType, KVLayout, Rows

isas = pytest.mark.parametrize("isa", ISAS)
kv_dtypes = pytest.mark.parametrize(
    "kv_dtype", [DType.F32, DType.F16, DType.BF16, DType.INT8, DType.INT16]
)


def stored_rounding(kv_dtype, data):
    """Bound of what rounding to the cache's dtype changes in [2, ...], keys and values.

    A code of 8 bits is off by half a step. So is one of 16 bits, and its step is below 2^-12 of the largest,
    or, where a smaller one would have made the norm too long, below 2^-13.9 of the norm.
    """
    if kv_dtype not in KV_ONLY_DTYPES:
        return ROUNDOFF[kv_dtype] * np.abs(data)
    largest = np.abs(data).max(axis=-1, keepdims=True)
    bounds = largest * np.float32((0.5 + 2.0**-9) / 127) * np.ones_like(data)
    if kv_dtype is DType.INT16:
        norm = np.sqrt((data[0] ** 2).sum(axis=-1, keepdims=True))
        bounds[0] = 0.5 * np.maximum(largest[0] * 2.0**-12, norm * 2.0**-13.9)
    return bounds


def is_written(block):
    """Per token and head."""
    return block.any(axis=-1)


def frequencies_of(half, theta=10_000.0):
    return (theta ** -(np.arange(half) / max(1, half))).astype(np.float32)


@isas
@pytest.mark.parametrize("half", [1, 5, 16, 32, 64])
def test_rope_table(isa, half):
    positions = np.array([0, 1, 17, 4095, 131_071, 1_000_000])
    tables = {}
    for backend in (reference(), cpu(isa)):

        def ops(recorder, _, backend=backend):
            out = recorder.buffer(Rows.TOKENS, 2 * half)
            recorder.rope_table(out, backend.load_vector(frequencies_of(half)), scale=1.25)
            return {"out": out}

        counts = (1,) * len(positions)
        tables_of = (np.zeros((len(positions), 62_501), np.int32),)
        layout = KVLayout(1, 1, 16, 16, DType.F32, (0,), (1,))
        tables[backend.name] = run_ops(
            backend,
            {"x": np.zeros((len(positions), 1), np.float32)},
            ops,
            batch=Batch(counts, tuple(positions.tolist()), tables_of),
            kv_cache=backend.create_kv_cache(layout),
        )["out"]
    # Both compute in float64 and round once; libraries may differ in float64's last place.
    assert_close(tables["cpu"], tables["reference"], 1.25 * 2.0**-24)
    assert np.all(tables["cpu"][0, :half] == 1.25)


def store_and_export(backend, layout, batch, qkv, *, num_heads, rotary, norms=None):
    """Rotated queries and keys, and every block of the cache."""
    cache = backend.create_kv_cache(layout)

    def ops(recorder, buffers):
        rope = recorder.buffer(Rows.TOKENS, rotary)
        recorder.rope_table(rope, backend.load_vector(frequencies_of(rotary // 2)))
        loaded = [backend.load_vector(n) if n is not None else None for n in norms or (None, None)]
        for layer in range(layout.num_layers):
            recorder.rotate_and_store(
                buffers[f"qkv{layer}"],
                rope,
                layer=layer,
                num_heads=num_heads,
                q_norm=loaded[0],
                k_norm=loaded[1],
                eps=1e-6,
            )
        return {name: buffers[name] for name in qkv}

    outputs = run_ops(backend, qkv, ops, batch=batch, kv_cache=cache)
    blocks = [
        cache.export_block(group, block)
        for group in range(len(layout.num_blocks))
        for block in range(layout.num_blocks[group])
    ]
    return outputs, blocks


@isas
@kv_dtypes
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "rotary"),
    [
        (3, 1, 64, 64),
        (4, 2, 16, 8),
        (2, 2, 96, 96),
        (8, 1, 128, 64),
        (1, 1, 256, 256),
        (2, 1, 20, 6),
    ],
)
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("has_norms", [False, True])
def test_rotate_and_store(
    isa, kv_dtype, num_heads, num_kv_heads, head_size, rotary, block_size, has_norms
):
    rng = np.random.default_rng(3)
    layout = KVLayout(2, num_kv_heads, head_size, block_size, kv_dtype, (1, 0), (7, 9))
    # Three sequences, of which the second is empty in this step, at odd places in their blocks.
    tables = []
    for num_blocks in layout.num_blocks:
        table = np.full((3, 3), -1, np.int32)
        table[1], table[2] = rng.permutation(num_blocks)[:6].reshape(2, 3)
        tables.append(table)
    batch = Batch((21, 0, 1), (13, 5, 40), tuple(tables), slots=(2, 0, 1))
    width = (num_heads + 2 * num_kv_heads) * head_size
    qkv = {f"qkv{layer}": rng.standard_normal((22, width), dtype=np.float32) for layer in range(2)}
    norms = None
    if has_norms:
        norms = tuple(rng.standard_normal(head_size, dtype=np.float32) for _ in range(2))
    arguments = {"num_heads": num_heads, "rotary": rotary, "norms": norms}
    expected, expected_blocks = store_and_export(reference(), layout, batch, qkv, **arguments)
    actual, actual_blocks = store_and_export(cpu(isa), layout, batch, qkv, **arguments)
    # Each element is two products and a sum; normalising adds a factor with its own few roundoffs.
    largest = max(np.abs(array).max() for array in expected.values())
    tolerance = (4 + (head_size / 16 + 8) * has_norms) * 2.0**-24 * 2 * largest
    for name in qkv:
        assert_close(actual[name], expected[name], tolerance)
    for actual_block, expected_block in zip(actual_blocks, expected_blocks, strict=True):
        rounding = 2 * stored_rounding(kv_dtype, expected_block)
        assert_close(actual_block, expected_block, tolerance + rounding)
        np.testing.assert_array_equal(
            is_written(actual_block), is_written(expected_block)
        )  # nothing else written


@isas
@kv_dtypes
def test_blocks_round_trip_and_copy(isa, kv_dtype):
    rng = np.random.default_rng(0)
    layout = KVLayout(3, 2, 24, 32, kv_dtype, (0, 1, 0), (4, 2))
    caches = [backend.create_kv_cache(layout) for backend in (reference(), cpu(isa))]
    for group, num_layers in ((0, 2), (1, 1)):
        data = rng.standard_normal((2, num_layers, 2, 32, 24)).astype(np.float32) * 100
        for cache in caches:
            cache.import_block(group, 1, data)
            cache.copy_block(group, 1, 0)
        for block in range(layout.num_blocks[group]):
            exported = [cache.export_block(group, block) for cache in caches]
            np.testing.assert_array_equal(exported[0], exported[1])
        assert_close(
            exported[1] * 0 + caches[1].export_block(group, 0),
            data,
            stored_rounding(kv_dtype, data),
        )
        again = caches[1].export_block(group, 0)
        caches[1].import_block(group, 1, again)
        np.testing.assert_array_equal(caches[1].export_block(group, 1), again)
    assert not caches[1].export_block(0, 3).any()


@isas
def test_bad_blocks_and_layouts_are_refused(isa):
    backend = cpu(isa, 1)
    cache = backend.create_kv_cache(KVLayout(1, 1, 16, 16, DType.F16, (0,), (2,)))
    with pytest.raises(KernelError):
        cache.copy_block(0, 0, 2)
    with pytest.raises(KernelError):
        cache.export_block(1, 0)
    with pytest.raises(KernelError):
        cache.import_block(0, 0, np.zeros((2, 1, 1, 8, 16), np.float32))
    for layout in (
        KVLayout(1, 1, 16, 24, DType.F16, (0,), (2,)),
        KVLayout(1, 1, 16, 16, DType.Q8, (0,), (2,)),
        KVLayout(1, 1, 16, 16, DType.F16, (3,), (2,)),
        KVLayout(1, 1, 16, 1024, DType.F16, (0,), (2,)),
    ):
        with pytest.raises(KernelError):
            backend.create_kv_cache(layout)
