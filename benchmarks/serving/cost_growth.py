"""How cost grows: step time with batch size, context and threads; throughput with a long queue.

The engine runs in this process for step times and prefill; queues are measured over HTTP, with `headrace bench`
holding that many more clients than sequences can run. Cost should be linear in what is attended and flat in what
waits: a cliff shows as a bend.

    python benchmarks/serving/cost_growth.py             about six minutes on two quiet cores
    python benchmarks/serving/cost_growth.py --quick     every part, small; kept out of the results
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cost_report import draw, markdown

from headrace.cli.local_server import local_server
from headrace.config.engine import EngineConfig, ExecutorConfig, MemoryConfig, ModelConfig
from headrace.core.clock import SystemClock
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.build import build_engine
from headrace.engine.engine import Engine

ROOT = Path(__file__).parent.parent.parent
HEADRACE = Path(sys.executable).with_name("headrace")
STEPS = 24
"""Full decode steps whose median counts."""
KV_MEMORY = "2GiB"
MAX_SEQS = 64
"""Sequences that run at once, the server's default: clients beyond it wait."""


def build(model: str, threads: int) -> Engine:
    """An engine with memory for 16 sequences of 4k tokens and no prefix cache."""
    config = EngineConfig(
        model=ModelConfig(model=model),
        memory=MemoryConfig(kv_memory=KV_MEMORY, prefix_cache=False),
        executor=ExecutorConfig(threads=threads),
    )
    return build_engine(config, SystemClock(), lambda phase: None).engine


def measure(engine: Engine, batch: int, context: int, rng: random.Random) -> dict[str, float]:
    """Prefill rate and decode step time of `batch` sequences whose prompts have `context` tokens."""
    # The first to decode must still run when the last prompt is in: steps of prefill, with room.
    tokens = 2 * batch * context // 512 + batch + STEPS + 8
    for number in range(batch):
        prompt = [rng.randrange(1000, 30_000) for _ in range(context)]
        engine.add(
            Request(
                request_id=str(number),
                prompt=(TokenSegment(prompt),),
                params=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
            )
        )
    steps: list[float] = []
    prefilled, prefill_seconds = 0, 0.0
    while engine.has_work() and len(steps) < STEPS:
        began = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - began
        step = engine.last_step
        if step is None:
            continue
        if step.num_prefill_tokens:
            prefilled += step.num_prefill_tokens
            prefill_seconds += seconds
        elif step.num_sequences == batch:
            steps.append(seconds)
    for number in range(batch):
        engine.cancel(str(number))
    while engine.has_work():
        engine.step()
    if len(steps) < STEPS:
        raise SystemExit(f"{batch} sequences of {context} tokens do not run together here.")
    return {
        "step_seconds": statistics.median(steps),
        "prefill_tokens_per_second": prefilled / prefill_seconds,
    }


def step_times(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Rows by batch, by context and by threads."""
    rng = random.Random(1)
    found: dict[str, list[dict[str, Any]]] = {"batch": [], "context": [], "threads": []}
    engine = build(args.model, max(args.threads))
    measure(engine, 1, 64, rng)
    for batch in args.batches:
        found["batch"].append(_row(engine, batch, args.context, max(args.threads), rng))
    for batch in args.context_batches:
        for context in args.contexts:
            if batch * context <= args.max_tokens:
                row = _row(engine, batch, context, max(args.threads), rng)
                found["context"].append(row)
    engine.close()
    for threads in args.threads:
        engine = build(args.model, threads)
        measure(engine, 1, 64, rng)
        found["threads"] += [
            _row(engine, batch, args.context, threads, rng) for batch in args.thread_batches
        ]
        engine.close()
        del engine
        gc.collect()
    return found


def _row(
    engine: Engine, batch: int, context: int, threads: int, rng: random.Random
) -> dict[str, Any]:
    about = {"batch": batch, "context": context, "threads": threads}
    row = about | measure(engine, batch, context, rng)
    print(json.dumps(row), flush=True)
    return row


def queues(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Throughput with so many requests waiting behind those that run."""
    limits = ["--max-queued-requests", "4096", "--max-queued-tokens", "4000000"]
    limits += ["--max-queue-time", "3600s", "--max-connections", "4096"]
    limits += ["--max-num-seqs", str(MAX_SEQS), "--threads", str(max(args.threads))]
    rows = []
    with local_server([args.model, *limits], ready_timeout=120.0) as server:
        for waiting in args.waiting:
            clients = MAX_SEQS + waiting
            command = [str(HEADRACE), "bench", "--url", server.url, "--json", "-"]
            command += ["--concurrency", str(clients), "--timeout", "3600s"]
            command += ["--num-requests", str(clients + args.queue_requests)]
            command += ["--input-words", "32", "--output-tokens", "16"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            run = json.loads(done.stdout)["runs"][0]
            if run["errors"]:
                raise SystemExit(f"requests failed: {run['errors']} {run['error_examples']}")
            rows.append(
                {
                    "waiting": waiting,
                    "output_tokens_per_second": run["output_tokens_per_second"],
                    "ttft_p95": run["ttft"]["p95"],
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def options() -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 2048, 4096, 8000])
    parser.add_argument("--context-batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--max-tokens", type=int, default=65_536, help="of all sequences together")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cores}))
    parser.add_argument("--thread-batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--waiting", type=int, nargs="*", default=[0, 250, 500, 1000, 2000])
    parser.add_argument("--queue-requests", type=int, default=512, help="beyond one a client")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.batches, args.contexts, args.context_batches = [1, 4], [128, 512], [1]
        args.waiting, args.queue_requests, args.thread_batches = [0, 100], 16, [1]
    return args


def main() -> None:
    args = options()
    began = datetime.now(UTC)
    result = {
        "date": began.isoformat(timespec="seconds"),
        "machine": {
            "cpu": Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0],
            "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
        },
        "options": vars(args),
        **step_times(args),
        "queue": queues(args),
    }
    folder = Path(tempfile.gettempdir()) if args.quick else ROOT / "benchmarks" / "results"
    stem = folder / f"cost-growth-{args.model}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    stem.with_suffix(".md").write_text(markdown(result))
    draw(result, stem.with_suffix(".svg"))
    print(markdown(result), f"written: {stem}.json", sep="\n")


if __name__ == "__main__":
    main()
