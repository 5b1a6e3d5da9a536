"""One attention layer over a cache of random keys and values, run on a backend."""

from dataclasses import dataclass

import numpy as np
from tests.support.op_run import Batch, run_ops

from headrace.kernels.values import DType, KVLayout, Rows


@dataclass(frozen=True)
class Case:
    """One attention layer over a cache full of random keys."""

    num_heads: int = 6
    num_kv_heads: int = 2
    head_size: int = 64
    block_size: int = 16
    kv_dtype: DType = DType.F16
    counts: tuple[int, ...] = (5, 1, 1)
    key_starts: tuple[int, ...] = (20, 99, 0)
    soft_cap: float = 0.0
    window: int = 0
    is_causal: bool = True
    out_dtype: DType = DType.F32
    absent: tuple[tuple[int, int], ...] = ()
    """(slot, block of its table) that were given back."""

    @property
    def layout(self):
        blocks = sum(self.blocks_of(s) for s in range(len(self.counts))) + 1
        return KVLayout(
            1,
            self.num_kv_heads,
            self.head_size,
            self.block_size,
            self.kv_dtype,
            (0,),
            (blocks,),
        )

    def blocks_of(self, sequence):
        return -(-(self.key_starts[sequence] + self.counts[sequence]) // self.block_size)

    def batch(self):
        """Tables of shuffled blocks, the last block of the cache in none of them."""
        rng = np.random.default_rng(7)
        counts = [self.blocks_of(s) for s in range(len(self.counts))]
        table = np.full((len(counts), max(counts)), -1, np.int32)
        ids = rng.permutation(sum(counts)).astype(np.int32)
        for slot, ours in enumerate(np.split(ids, np.cumsum(counts)[:-1])):
            table[slot, : len(ours)] = ours
        for slot, block in self.absent:
            table[slot, block] = -1
        return Batch(self.counts, self.key_starts, (table,))

    def blocks(self, fault=None):
        """Canonical contents of every block; `fault` fills keys beyond each sequence's last."""
        rng = np.random.default_rng(11)
        layout = self.layout
        shape = (layout.num_blocks[0], 2, 1, self.num_kv_heads, self.block_size, self.head_size)
        data = rng.standard_normal(shape, dtype=np.float32)
        if fault is not None:
            data[-1] = fault
            table = self.batch().tables[0]
            for s, (start, count) in enumerate(zip(self.key_starts, self.counts, strict=True)):
                used = (start + count) % self.block_size
                if used:
                    data[table[s, (start + count) // self.block_size], ..., used:, :] = fault
        return data

    def queries(self):
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        rng = np.random.default_rng(13)
        return rng.standard_normal((sum(self.counts), width), dtype=np.float32)


def filled_cache(backend, case, blocks=None):
    """A cache with the case's keys and values."""
    cache = backend.create_kv_cache(case.layout)
    for block, data in enumerate(case.blocks() if blocks is None else blocks):
        cache.import_block(0, block, data)
    return cache


def run_case(backend, case, *, qkv=None, batch=None, blocks=None, cache=None, with_mass=False):
    """Attention output rows (and mass) of a case."""
    if cache is None:
        cache = filled_cache(backend, case, blocks)
    batch = case.batch() if batch is None else batch

    def ops(recorder, buffers):
        out = recorder.buffer(Rows.TOKENS, case.num_heads * case.head_size, case.out_dtype)
        mass = None
        if with_mass:
            mass = recorder.buffer(Rows.TOKENS, case.num_kv_heads * batch.tables[0].shape[1])
        recorder.attention(
            buffers["qkv"],
            out,
            layer=0,
            num_heads=case.num_heads,
            scale=case.head_size**-0.5,
            soft_cap=case.soft_cap,
            window=case.window,
            is_causal=case.is_causal,
            mass=mass,
        )
        return {"out": out, **({"mass": mass} if mass else {})}

    inputs = {"qkv": case.queries() if qkv is None else qkv}
    return run_ops(backend, inputs, ops, batch=batch, kv_cache=cache)
