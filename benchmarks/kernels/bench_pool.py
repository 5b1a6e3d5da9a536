"""What it costs to share an op between threads: on free cores, beside another process, and beside a replica.

    python benchmarks/kernels/bench_pool.py [--threads 2]

A step is 120 linears (30 layers times 4, as in decode) of one row, in two sizes: `tiny`, all of whose time is
the hand-over to the threads and back, and `layer`, those of SmolLM2-135M. Company is another process that
wants a core half of the time, in bursts of 0.3 ms, as a server that streams does; or one more copy of the
same step, as a second replica on the same cores. Per line: median and 99th percentile of a step, and the
median per linear. Threads help if the median stays below that of one thread in the same company.
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Event

import numpy as np

from headrace.kernels import dispatch
from headrace.kernels.formats import QuantizedMatrix, WeightFormat
from headrace.kernels.packing import pack
from headrace.kernels.values import DType, KVLayout, Rows, StepInputs, StepLimits

LAYERS = 30
SIZES = {
    "tiny": ((64, 64),) * 4,
    "layer": (
        (960, 576),
        (576, 576),
        (3072, 576),
        (576, 1536),
    ),  # (N, K): qkv, o, gate and up, down
}
BURST_SECONDS = 0.3e-3


def make_program(size, threads):
    backend = dispatch.create_backend("cpu", "auto", threads)
    rng = np.random.default_rng(1)
    layout = KVLayout(1, 1, 16, 16, DType.F32, (0,), (1,))
    recorder = backend.recorder(StepLimits(1, 1), backend.create_kv_cache(layout))
    buffers = {}
    for num_outputs, num_inputs in SIZES[size] * LAYERS:
        codes = rng.integers(0, 16, (num_outputs, num_inputs), dtype=np.uint8)
        scales = np.full((num_outputs, num_inputs // 32), 0.01, np.float32)
        weight = pack(QuantizedMatrix(WeightFormat.W4G32, codes, scales, None, 8))
        for key in ((num_inputs, DType.Q8), (num_outputs, DType.F32)):
            if key not in buffers:
                buffers[key] = recorder.buffer(Rows.TOKENS, *key)
        x, out = buffers[num_inputs, DType.Q8], buffers[num_outputs, DType.F32]
        recorder.linear(x, backend.load_weight(weight), out)
    return recorder.finish()


def one_row():
    return StepInputs(
        token_ids=np.zeros(1, np.int32),
        positions=np.zeros(1, np.int32),
        query_starts=np.array([0, 1], np.int32),
        key_starts=np.zeros(1, np.int32),
        slots=np.zeros(1, np.int32),
        block_tables=(np.zeros((1, 1), np.int32),),
        output_rows=np.zeros(0, np.int32),
    )


def burst(ready: Event, stop: Event) -> None:
    """Want a core half of the time."""
    ready.set()
    while not stop.is_set():
        end = time.perf_counter() + BURST_SECONDS
        while time.perf_counter() < end:
            pass
        time.sleep(BURST_SECONDS)


def replicate(size: str, threads: int, ready: Event, stop: Event) -> None:
    """Run the same steps until told to stop."""
    program, inputs = make_program(size, threads), one_row()
    ready.set()
    while not stop.is_set():
        program.run(inputs)


def measure(program, seconds):
    inputs = one_row()
    program.run(inputs)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 100:
        start = time.perf_counter()
        program.run(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def measure_beside(company, size, threads, seconds):
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    others = {
        "nobody": None,
        "bursts": context.Process(target=burst, args=(ready, stop)),
        "replica": context.Process(target=replicate, args=(size, threads, ready, stop)),
    }
    program, other = make_program(size, threads), others[company]
    if other is None:
        return measure(program, seconds)
    other.start()
    try:
        if not ready.wait(60):
            raise RuntimeError("The other process did not start.")
        return measure(program, seconds)
    finally:
        stop.set()
        other.join(10)
        other.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="measured beside one thread")
    parser.add_argument("--seconds", type=float, default=1.0, help="per line")
    arguments = parser.parse_args()
    print("step   beside   threads  median us    p99 us  us/linear")
    for size in SIZES:
        for company in ("nobody", "bursts", "replica"):
            for threads in (1, arguments.threads):
                median, p99 = measure_beside(company, size, threads, arguments.seconds)
                print(
                    f"{size:6s} {company:8s} {threads:7d} {median * 1e6:10.1f} {p99 * 1e6:9.1f} "
                    f"{median / LAYERS / 4 * 1e6:10.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
