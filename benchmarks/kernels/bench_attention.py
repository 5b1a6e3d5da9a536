"""How fast attention runs, beside what the machine allows: GFLOPS and the rate at which KV is read.

    python benchmarks/kernels/bench_attention.py [--isa avx512] [--threads 1 2] [--kv int16] [--shape decode]

FLOPS count 4 * D per (query head, visible key): two products, two sums. Bytes are the keys and values
of every sequence, once. The limit is the larger of bytes over the memory's rate and of flops over the
arithmetic's, as measured by hand-written loops on this kind of machine (--gbps, --gflops for others);
what lies in the caches may be read faster than that. `--cpu-time` counts the caller's CPU time, for one
thread on a busy machine.
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
    Shape("smollm2 decode 1 x 2000", 9, 3, 64, 1, 1, 2000),
    Shape("smollm2 decode 1 x 8000", 9, 3, 64, 1, 1, 8000),
    Shape("smollm2 decode 16 x 1000", 9, 3, 64, 16, 1, 1000),
    Shape("smollm2 decode 16 x 4000", 9, 3, 64, 16, 1, 4000),
    Shape("smollm2 chunk 512 after 1536", 9, 3, 64, 1, 512, 1536),
    Shape("smollm2 chunk 512 after 7680", 9, 3, 64, 1, 512, 7680),
    Shape("gemma3 prefill 512", 4, 1, 256, 1, 512, 0, window=512),
    Shape("gemma2 prefill 512, capped", 8, 4, 256, 1, 512, 0, soft_cap=50.0),
    Shape("llama3 8b chunk 512 after 512", 32, 8, 128, 1, 512, 512),
    Shape("llama3 8b decode 4 x 2000", 32, 8, 128, 4, 1, 2000),
)


#: Limits of two cores of an AMD EPYC (Zen 4) by number of threads; GFLOPS per dtype of keys and values, of
#: which int8 has half its products in 8 bits and half in 16; int16 has all in 16.
MEMORY_GBPS = {1: 20.4, 2: 29.5}
PEAK_GFLOPS = {
    "f32": {1: 117, 2: 234},
    "f16": {1: 117, 2: 234},
    "bf16": {1: 234, 2: 468},
    "int8": {1: 312, 2: 623},
    "int16": {1: 234, 2: 468},
}


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


def seconds(shape, backend, kv_dtype, block_size, repeats, clock=time.perf_counter):
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
        start = clock()
        program.run(inputs)
        times.append(clock() - start)
    return min(times)


def read_bytes(shape, kv):
    """Of keys and values that any query sees."""
    keys = min(shape.past + shape.count, shape.window + shape.count if shape.window else 1 << 40)
    layout = KVLayout(1, shape.num_kv_heads, shape.head_size, 16, DType(kv), (0,), (1,))
    return shape.num_sequences * keys * layout.bytes_per_token_layer


def options_of():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", choices=ISAS, default="avx512")
    parser.add_argument("--threads", type=int, nargs="+", default=[topology.detect().num_threads])
    parser.add_argument("--kv", choices=list(PEAK_GFLOPS), default="int16")
    parser.add_argument("--shape", default="", help="only shapes whose names hold this")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gbps", type=float, help="what memory gives")
    parser.add_argument("--gflops", type=float, help="what the arithmetic gives")
    parser.add_argument("--cpu-time", action="store_true")
    return parser.parse_args()


def main():
    options = options_of()
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(
        f"{'shape':32} {'threads':>7} {'us':>10} {'GFLOPS':>8} {'GB/s':>7} {'limit us':>9} {'of it':>6}"
    )
    for threads in options.threads:
        backend = CpuBackend(options.isa, threads)
        gbps = options.gbps or MEMORY_GBPS.get(threads, MEMORY_GBPS[2])
        peaks = PEAK_GFLOPS[options.kv]
        gflops = options.gflops or peaks.get(threads, peaks[1] * threads)
        for shape in SHAPES:
            if options.shape not in shape.name:
                continue
            kv_dtype = DType(options.kv)
            best = seconds(shape, backend, kv_dtype, options.block_size, options.repeats, clock)
            flops = 4 * shape.pairs * shape.num_heads * shape.head_size
            read = read_bytes(shape, options.kv)
            limit = max(read / gbps, flops / gflops) / 1e9
            print(
                f"{shape.name:32} {threads:7} {best * 1e6:10.1f} {flops / best / 1e9:8.1f} "
                f"{read / best / 1e9:7.1f} {limit * 1e6:9.1f} {limit / best:6.0%}"
            )


if __name__ == "__main__":
    main()
