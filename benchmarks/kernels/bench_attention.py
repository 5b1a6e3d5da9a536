"""How fast attention runs: GFLOPS and the rate at which keys and values are read.

    python benchmarks/kernels/bench_attention.py [--isa avx512] [--threads 1 2] [--kv f16]

FLOPS count 4 * D per (query head, visible key): two products, two sums. Bytes are the keys and values
of every sequence, once.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np

from headrace.kernels import topology
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.dispatch import ISAS
from headrace.kernels.values import DType, KVLayout, Rows, StepInputs, StepLimits


@dataclass(frozen=True)
class Shape:
    """`num_sequences` sequences that each run `count` tokens after `past` keys."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_sequences: int
    count: int
    past: int
    window: int = 0
    soft_cap: float = 0.0

    @property
    def pairs(self):
        """(query, visible key) pairs of all sequences."""
        keys = [self.past + i + 1 for i in range(self.count)]
        return self.num_sequences * sum(min(k, self.window) if self.window else k for k in keys)


SHAPES = (
    Shape("smollm2 prefill 2048", 9, 3, 64, 1, 2048, 0),
    Shape("smollm2 prefill 256", 9, 3, 64, 1, 256, 0),
    Shape("smollm2 decode 16 x 400", 9, 3, 64, 16, 1, 400),
    Shape("smollm2 decode 1 x 400", 9, 3, 64, 1, 1, 400),
    Shape("smollm2 decode 1 x 8000", 9, 3, 64, 1, 1, 8000),
    Shape("gemma3 prefill 512", 4, 1, 256, 1, 512, 0, window=512),
    Shape("gemma2 prefill 512, capped", 8, 4, 256, 1, 512, 0, soft_cap=50.0),
    Shape("llama3 8b chunk 512 after 512", 32, 8, 128, 1, 512, 512),
    Shape("llama3 8b decode 4 x 2000", 32, 8, 128, 4, 1, 2000),
)


def step_of(shape, block_size, rng):
    """Inputs with shuffled block tables, and how many blocks they use."""
    blocks = -(-(shape.past + shape.count) // block_size)
    total = blocks * shape.num_sequences
    num_tokens = shape.count * shape.num_sequences
    starts = np.arange(shape.num_sequences + 1) * shape.count
    inputs = StepInputs(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.zeros(num_tokens, np.int32),
        query_starts=starts.astype(np.int32),
        key_starts=np.full(shape.num_sequences, shape.past, np.int32),
        slots=np.arange(shape.num_sequences, dtype=np.int32),
        block_tables=(rng.permutation(total).reshape(-1, blocks).astype(np.int32),),
        output_rows=np.zeros(0, np.int32),
    )
    return inputs, total


def seconds(shape, backend, kv_dtype, block_size, repeats):
    """The shortest of several runs."""
    rng = np.random.default_rng(0)
    inputs, blocks = step_of(shape, block_size, rng)
    heads = (shape.num_kv_heads, block_size, shape.head_size)
    layout = KVLayout(1, shape.num_kv_heads, shape.head_size, block_size, kv_dtype, (0,), (blocks,))
    cache = backend.create_kv_cache(layout)
    for block in range(blocks):
        cache.import_block(0, block, rng.standard_normal((2, 1, *heads), dtype=np.float32))
    num_tokens = len(inputs.token_ids)
    recorder = backend.recorder(StepLimits(num_tokens, 1), cache)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    qkv = recorder.buffer(Rows.TOKENS, width)
    out = recorder.buffer(Rows.TOKENS, shape.num_heads * shape.head_size)
    recorder.attention(
        qkv,
        out,
        layer=0,
        num_heads=shape.num_heads,
        scale=shape.head_size**-0.5,
        window=shape.window,
        soft_cap=shape.soft_cap,
    )
    program = recorder.finish()
    program.write(qkv, rng.standard_normal((num_tokens, width), dtype=np.float32))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        program.run(inputs)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", choices=ISAS, default="avx512")
    parser.add_argument("--threads", type=int, nargs="+", default=[topology.detect().num_threads])
    parser.add_argument("--kv", choices=["f16", "bf16", "f32"], default="f16")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    element = 4 if options.kv == "f32" else 2
    print(f"{'shape':32} {'threads':>7} {'us':>10} {'GFLOPS':>8} {'GB/s':>7}")
    for threads in options.threads:
        backend = CpuBackend(options.isa, threads)
        for shape in SHAPES:
            best = seconds(shape, backend, DType(options.kv), options.block_size, options.repeats)
            flops = 4 * shape.pairs * shape.num_heads * shape.head_size
            keys = min(shape.past + shape.count, shape.window or 1 << 40)
            row = 2 * shape.num_kv_heads * shape.head_size * element
            read = shape.num_sequences * keys * row
            print(
                f"{shape.name:32} {threads:7} {best * 1e6:10.1f} {flops / best / 1e9:8.1f} "
                f"{read / best / 1e9:7.1f}"
            )


if __name__ == "__main__":
    main()
