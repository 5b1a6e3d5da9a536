"""Speed of what a step does beside linears and attention, beside the memory that it must move.

    python benchmarks/kernels/bench_elementwise.py --isa avx512 --cpu-time [--kv int16] [--ops rms_norm,convert]

Runs each op of the catalogue but `linear`, `attention` and `sample`, which have files of their own, on buffers of
SmolLM2-135M's shapes, once per layer. One line per op and number of rows: time of a row, and bytes read and
written a second, with the share of what one core of an AMD EPYC (Zen 4) moves from memory (14.7 GB/s; rows
that fit a cache move faster). What computes more than it moves stays far below: `rope_table` takes sines in
double precision, once a step and not once a layer.
"""

import argparse
import statistics
import time

import numpy as np

from headrace.kernels import dispatch
from headrace.kernels.formats import LowRank, QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack
from headrace.kernels.values import Activation, DType, KVLayout, Rows, StepInputs, StepLimits

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 30, 576, 1536, 9, 3, 64, 4096
QKV = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
BLOCK = 64
MOST_ROWS = 2048
RANK = 16  # of the adapter
Q8_BYTES = 48 / 32  # per element
STORED = ("f32", "bf16", "f16", "int16", "int8")


def embedding(rng):
    codes = rng.integers(0, 256, (VOCABULARY, HIDDEN), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.01, (VOCABULARY, HIDDEN // 32)).astype(np.float32)
    return pack(QuantizedMatrix(WeightFormat.W8G32, codes, scales, None, 128))


class Bench:
    """The ops to measure: for each a function that records it for one layer, and the bytes that it moves."""

    def __init__(self, backend, kv_dtype, rng):
        self.backend = backend
        self.kv_dtype = kv_dtype
        self.table = backend.load_weight(embedding(rng))
        self.norm = backend.load_vector(np.ones(HIDDEN, np.float32))
        self.head_norm = backend.load_vector(np.ones(HEAD_SIZE, np.float32))
        self.positions = backend.load_vector(np.ones(MOST_ROWS * HIDDEN, np.float32))
        self.frequencies = backend.load_vector(1e4 ** -(np.arange(32) / 32))
        self.adapters = backend.create_adapters(QKV, HIDDEN, 1)
        low, up = (RANK, HIDDEN), (QKV, RANK)
        self.adapters.set(
            1, LowRank(*(rng.standard_normal(x, dtype=np.float32) for x in (low, up)))
        )
        stored = KVLayout(1, KV_HEADS, HEAD_SIZE, BLOCK, kv_dtype, (0,), (1,)).bytes_per_token_layer
        rotated = (HEADS + KV_HEADS) * HEAD_SIZE * 8 + KV_HEADS * HEAD_SIZE * 4 + HEAD_SIZE * 4
        self.bytes_per_row = {
            "embed": HIDDEN * 5,
            "rms_norm": HIDDEN * (4 + Q8_BYTES),
            "rms_norm_add": HIDDEN * 12,
            "gated_activation": INNER * (8 + Q8_BYTES),
            "rotate_and_store": rotated + stored,
            "rotate_and_store with norms": rotated + stored,
            "rope_table": HEAD_SIZE * 4,
            "gather_outputs": HIDDEN * 8,
            "soft_cap": HIDDEN * 8,
            "convert": HIDDEN * (4 + Q8_BYTES),
            "layer_norm": HIDDEN * (4 + Q8_BYTES),
            "add_positions": HIDDEN * 12,
            "activation": INNER * (4 + Q8_BYTES),
            "adapt": HIDDEN * Q8_BYTES + QKV * 8,
        }
        self.bytes_per_call = {"adapt": RANK * (HIDDEN + QKV) * 4}

    def record(self, op, recorder, layer, buffers):
        hidden, other, normed, gate_up, active, qkv, rope, outputs, inner = buffers
        calls = {
            "embed": lambda: recorder.embed(self.table, hidden),
            "rms_norm": lambda: recorder.rms_norm(hidden, self.norm, normed, eps=1e-5),
            "rms_norm_add": lambda: recorder.rms_norm_add(hidden, self.norm, other, eps=1e-5),
            "gated_activation": lambda: recorder.gated_activation(
                gate_up, active, kind=Activation.SILU
            ),
            "rope_table": lambda: recorder.rope_table(rope, self.frequencies),
            "gather_outputs": lambda: recorder.gather_outputs(hidden, outputs),
            "soft_cap": lambda: recorder.soft_cap(hidden, cap=30.0),
            "convert": lambda: recorder.convert(hidden, normed),
            "layer_norm": lambda: recorder.layer_norm(
                hidden, self.norm, self.norm, normed, eps=1e-5
            ),
            "add_positions": lambda: recorder.add_positions(self.positions, hidden),
            "activation": lambda: recorder.activation(inner, active, kind=Activation.GELU),
            "adapt": lambda: recorder.adapt(normed, self.adapters, qkv),
        }
        if op in calls:
            calls[op]()
            return
        norm = self.head_norm if op.endswith("norms") else None
        recorder.rotate_and_store(
            qkv, rope, layer=layer, num_heads=HEADS, q_norm=norm, k_norm=norm, eps=1e-5
        )

    def program(self, op, rows, sequences):
        blocks = sequences * -(-rows // sequences // BLOCK)
        layout = KVLayout(
            LAYERS, KV_HEADS, HEAD_SIZE, BLOCK, self.kv_dtype, (0,) * LAYERS, (blocks,)
        )
        recorder = self.backend.recorder(
            StepLimits(rows, rows), self.backend.create_kv_cache(layout)
        )
        shapes = (
            (HIDDEN, DType.F32),
            (HIDDEN, DType.F32),
            (HIDDEN, DType.Q8),
            (2 * INNER, DType.F32),
            (INNER, DType.Q8),
            (QKV, DType.F32),
            (HEAD_SIZE, DType.F32),
        )
        buffers = [recorder.buffer(Rows.TOKENS, *shape) for shape in shapes]
        buffers.append(recorder.buffer(Rows.OUTPUTS, HIDDEN))
        buffers.append(recorder.buffer(Rows.TOKENS, INNER))
        if op.startswith("rotate"):
            recorder.rope_table(buffers[6], self.frequencies)
        for layer in range(LAYERS):
            self.record(op, recorder, layer, buffers)
        program = recorder.finish()
        rng = np.random.default_rng(2)
        for buffer in buffers:
            program.write(buffer, rng.standard_normal((rows, buffer.width), dtype=np.float32))
        return program


def step(op, rows, sequences):
    """`sequences` prompts of equal length, or as many sequences of one token."""
    each = rows // sequences
    blocks = -(-each // BLOCK)
    return StepInputs(
        token_ids=np.arange(rows, dtype=np.int32) * 37 % VOCABULARY,
        positions=np.tile(np.arange(each, dtype=np.int32), sequences),
        query_starts=np.arange(sequences + 1, dtype=np.int32) * each,
        key_starts=np.zeros(sequences, np.int32),
        slots=np.arange(sequences, dtype=np.int32),
        block_tables=(np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),),
        output_rows=np.arange(rows, dtype=np.int32),
        adapters=np.ones(rows, np.int32) if op == "adapt" else None,
    )


def measure(program, inputs, seconds, clock):
    program.run(inputs)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = clock()
        program.run(inputs)
        times.append(clock() - start)
    return min(times), statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rows", default="1,16,512", help="up to 32: one sequence a row")
    parser.add_argument(
        "--kv", default="int16", choices=STORED, help="how keys and values are kept"
    )
    parser.add_argument("--ops", default="", help="default: all")
    parser.add_argument("--seconds", type=float, default=0.5, help="per line")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, by its CPU clock")
    parser.add_argument("--core-gbs", type=float, default=14.7, help="memory speed of one core")
    arguments = parser.parse_args()
    num_threads = 1 if arguments.cpu_time else arguments.threads
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    backend = dispatch.create_backend("cpu", arguments.isa, num_threads)
    bench = Bench(backend, DType(arguments.kv), np.random.default_rng(1))
    memory = arguments.core_gbs * backend.num_threads
    print(f"{backend.isa}, {backend.num_threads} threads, {LAYERS} layers, KV {arguments.kv}")
    print(f"{'op':28s} rows  best us  median us   ns/row    GB/s (of memory)")
    for op in arguments.ops.split(",") if arguments.ops else bench.bytes_per_row:
        for rows in (min(int(count), MOST_ROWS) for count in arguments.rows.split(",")):
            sequences = rows if rows <= 32 else 1
            program = bench.program(op, rows, sequences)
            best, median = measure(program, step(op, rows, sequences), arguments.seconds, clock)
            moved = bench.bytes_per_row[op] * rows + bench.bytes_per_call.get(op, 0)
            gbs = moved * LAYERS / best / 1e9
            print(
                f"{op:28s} {rows:4d} {best / LAYERS * 1e6:8.2f} {median / LAYERS * 1e6:10.2f} "
                f"{best / LAYERS / rows * 1e9:8.0f} {gbs:7.1f} ({gbs / memory:4.0%})"
            )


if __name__ == "__main__":
    main()
