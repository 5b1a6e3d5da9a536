"""Speed of drawing tokens, beside the memory that logits take.

    python benchmarks/kernels/bench_sampling.py --isa avx512 --cpu-time [--vocabulary 49152] [--rows 1,16]

One line per kind of sampling and number of rows: time of a row, and bytes of logits a second, with the share of what
one core of an AMD EPYC (Zen 4) reads from memory (14.7 GB/s). A kind reads its logits at least once; a row of
196 kB lies in the cache behind the output head, so once may be faster than memory. `score` reports of given tokens.
"""

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np

from headrace.kernels import dispatch
from headrace.kernels.values import SampleBatch

CONTEXT = 512
KINDS = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.95},
    "top_k, top_p, min_p": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "typical_p": {"typical_p": 0.9},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "xtc": {"xtc_probability": 0.5},
    "greedy, 5 logprobs": {"temperature": 0.0, "num_logprobs": 5},
    "greedy, grammar": {"temperature": 0.0},
}


def batch_of(rows, settings, vocabulary, rng):
    """`rows` sequences with a history of CONTEXT tokens and the same settings."""

    def column(name, default, dtype=np.float32):
        return np.full(rows, settings.get(name, default), dtype)

    return SampleBatch(
        temperature=column("temperature", 0.8),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1.0),
        min_p=column("min_p", 0.0),
        presence_penalty=column("presence_penalty", 0.0),
        frequency_penalty=column("frequency_penalty", 0.0),
        repetition_penalty=column("repetition_penalty", 1.0),
        typical_p=column("typical_p", 1.0),
        top_n_sigma=column("top_n_sigma", 0.0),
        xtc_probability=column("xtc_probability", 0.0),
        xtc_threshold=column("xtc_threshold", 0.1),
        seeds=np.arange(rows, dtype=np.uint64),
        output_positions=np.full(rows, CONTEXT // 2, np.int64),
        num_logprobs=column("num_logprobs", -1, np.int32),
        post_sampling=np.zeros(rows, np.bool_),
        slots=np.arange(rows, dtype=np.int32),
        history=rng.integers(0, vocabulary, (rows, CONTEXT), dtype=np.int32),
        history_lengths=np.full(rows, CONTEXT, np.int32),
        num_prompt=np.full(rows, CONTEXT // 2, np.int32),
        bias_starts=np.zeros(rows + 1, np.int32),
        bias_ids=np.zeros(0, np.int32),
        bias_values=np.zeros(0, np.float32),
    )


def measure(call, logits, seconds, clock):
    """Best and median; the logits, which a draw may use as scratch, are laid out anew before each."""
    scratch = logits.copy()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        scratch[:] = logits
        start = clock()
        call(scratch)
        times.append(clock() - start)
    return min(times), statistics.median(times)


def calls(backend, rows, vocabulary, rng):
    """(kind, what draws once from logits)."""
    allowed = rng.integers(0, 1 << 32, (rows, -(-vocabulary // 32)), dtype=np.uint32)
    for kind, settings in KINDS.items():
        batch = batch_of(rows, settings, vocabulary, rng)
        if kind.endswith("grammar"):
            batch = replace(batch, allowed=allowed)
        yield kind, lambda logits, batch=batch: backend.sample(logits, batch)
    tokens = rng.integers(0, vocabulary, rows, dtype=np.int32)
    alternatives = np.zeros(rows, np.int32)
    yield "score", lambda logits: backend.score(logits, tokens, alternatives)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rows", default="1,16")
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--seconds", type=float, default=0.3, help="per line")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, by its CPU clock")
    parser.add_argument("--core-gbs", type=float, default=14.7, help="memory speed of one core")
    arguments = parser.parse_args()
    num_threads = 1 if arguments.cpu_time else arguments.threads
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    backend = dispatch.create_backend("cpu", arguments.isa, num_threads)
    memory = arguments.core_gbs * backend.num_threads
    print(f"{backend.isa}, {backend.num_threads} threads, {arguments.vocabulary} tokens")
    print(f"{'kind':20s} rows  best us  median us   us/row    GB/s (of memory)")
    rng = np.random.default_rng(0)
    for rows in (int(count) for count in arguments.rows.split(",")):
        # As a model's: a few large values over a broad base.
        logits = rng.standard_normal((rows, arguments.vocabulary), dtype=np.float32) * 2
        logits += rng.standard_exponential(logits.shape, dtype=np.float32)
        for kind, call in calls(backend, rows, arguments.vocabulary, rng):
            best, median = measure(call, logits, arguments.seconds, clock)
            gbs = logits.nbytes / best / 1e9
            print(
                f"{kind:20s} {rows:4d} {best * 1e6:8.1f} {median * 1e6:10.1f} "
                f"{best / rows * 1e6:8.1f} {gbs:7.1f} ({gbs / memory:4.0%})"
            )


if __name__ == "__main__":
    main()
