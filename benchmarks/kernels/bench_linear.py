"""Speed of the linear layers of a model, beside what the machine allows.

    python benchmarks/kernels/bench_linear.py --isa avx512 --threads 2

Runs every linear of SmolLM2-135M (30 layers, then the output head) on random weights, so that weights come
from memory as they do in serving. One line per number of rows: best and median time of a pass, rows per
second, arithmetic and memory speed with their share of the roofline. The roofline is measured first, with
the same threads and instruction set, by the program in `limits/` (weights of a model that fits the
last-level cache may exceed that of memory).
"""

import argparse
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from headrace.kernels import dispatch
from headrace.kernels.formats import QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack
from headrace.kernels.values import DType, KVLayout, Rows, StepInputs, StepLimits

LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # (N, K): qkv, o, gate and up, down
HEAD = (49152, 576)


def random_weight(rng, weight_format, shape, has_mins):
    num_outputs, num_inputs = shape
    if not weight_format.is_quantized:
        values = rng.standard_normal(shape, dtype=np.float32)
        if weight_format is WeightFormat.BF16:
            return pack((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
        return pack(values.astype(np.float16) if weight_format is WeightFormat.F16 else values)
    limit = 16 if weight_format is WeightFormat.W4G32 else 256
    codes = rng.integers(0, limit, shape, dtype=np.uint8)
    groups = (num_outputs, num_inputs // weight_format.group_size)
    scales = rng.uniform(0.001, 0.01, groups).astype(np.float32)
    return pack(
        QuantizedMatrix(
            weight_format, codes, scales, -scales if has_mins else None, 0 if has_mins else 8
        )
    )


def record(backend, weights, rows):
    """A program of the linears over shared buffers, and the number of its buffers' rows."""
    layout = KVLayout(1, 1, 16, 16, DType.F32, (0,), (1,))
    recorder = backend.recorder(StepLimits(rows, rows), backend.create_kv_cache(layout))
    rng = np.random.default_rng(1)
    operands, outs, fill = {}, {}, []
    for weight in weights:
        x_key = (weight.num_inputs, recorder.operand_dtype(weight.format))
        if x_key not in operands:
            operands[x_key] = recorder.buffer(Rows.TOKENS, *x_key)
            fill.append(operands[x_key])
        if weight.num_outputs not in outs:
            outs[weight.num_outputs] = recorder.buffer(Rows.TOKENS, weight.num_outputs)
        handle = backend.load_weight(weight)
        recorder.linear(operands[x_key], handle, outs[weight.num_outputs])
    program = recorder.finish()
    for buffer in fill:
        program.write(buffer, rng.standard_normal((rows, buffer.width), dtype=np.float32))
    return program


def measure_limits(isa, num_threads):
    """name -> billions of bytes or operations a second: memory, int8, bf16, f32, where known."""
    source = Path(__file__).parent / "limits"
    build = Path(__file__).parents[2] / "build" / "limits"
    for command in (
        ["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", build],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = subprocess.run(
        [build / "limits", isa, str(num_threads)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines)}


def share(value, limit):
    return f"({value / limit:4.0%})" if limit else "( n/a)"


def step(rows):
    return StepInputs(
        token_ids=np.zeros(rows, np.int32),
        positions=np.zeros(rows, np.int32),
        query_starts=np.array([0, rows], np.int32),
        key_starts=np.zeros(1, np.int32),
        slots=np.zeros(1, np.int32),
        block_tables=(np.zeros((1, 1), np.int32),),
        output_rows=np.zeros(0, np.int32),
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--format", default="w4g32", choices=[f.value for f in WeightFormat])
    parser.add_argument("--head-format", default="", help="default: that of the layers")
    parser.add_argument("--no-mins", action="store_true", help="symmetric weights")
    parser.add_argument("--rows", default="1,2,4,8,16,32,128,512")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0, help="per line")
    parser.add_argument("--shape", default="", help="NxK: only this one, as many times as layers")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="one thread, timed by its own CPU clock: for a machine that is busy with other work",
    )
    parser.add_argument("--peak-gops", type=float, default=0.0, help="default: measured")
    parser.add_argument("--peak-gbs", type=float, default=0.0, help="default: measured")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    num_threads = 1 if arguments.cpu_time else arguments.threads
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    backend = dispatch.create_backend("cpu", arguments.isa, num_threads)
    layer_format = WeightFormat(arguments.format)
    head_format = WeightFormat(arguments.head_format or arguments.format)
    rng = np.random.default_rng(0)
    shapes = LAYER
    if arguments.shape:
        shapes = (tuple(int(size) for size in arguments.shape.split("x")),)
    has_mins = layer_format is WeightFormat.W4G32 and not arguments.no_mins
    layers = [
        random_weight(rng, layer_format, shape, has_mins)
        for _ in range(arguments.layers)
        for shape in shapes
    ]
    head = [] if arguments.shape else [random_weight(rng, head_format, HEAD, has_mins=False)]
    limits = measure_limits(backend.isa, backend.num_threads)
    operand = str(backend.operand_dtype(layer_format)).lower()
    kind = "int8" if layer_format.is_quantized else operand
    peak_gops = arguments.peak_gops or limits.get(kind, 0.0)
    peak_gbs = arguments.peak_gbs or limits["memory"]
    print(f"{backend.isa}, {backend.num_threads} threads, {layer_format} (head {head_format})")
    print(f"limits: {kind} {peak_gops:.0f} GOPS, memory {peak_gbs:.1f} GB/s")
    print("rows   best ms  median ms    rows/s     GOPS (of peak)    GB/s (of memory)")
    for rows in (int(count) for count in arguments.rows.split(",")):
        weights = layers + (head if rows <= 32 else [])
        program = record(backend, weights, rows)
        best, median = measure(program, step(rows), arguments.seconds, clock)
        operations = 2.0 * rows * sum(w.num_outputs * w.num_inputs for w in weights)
        gops, gbs = operations / best / 1e9, sum(len(w.data) for w in weights) / best / 1e9
        print(
            f"{rows:4d} {best * 1e3:9.2f} {median * 1e3:10.2f} {rows / best:9.0f} "
            f"{gops:8.0f} {share(gops, peak_gops)} {gbs:11.1f} {share(gbs, peak_gbs)}"
        )


if __name__ == "__main__":
    main()
