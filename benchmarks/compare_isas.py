"""How much of one instruction set's speed another one has, for a whole model: decode and prefill of real weights.

    python benchmarks/compare_isas.py [--isas avx2 avx512] [--least 0.45]

One engine for each set in this process, with the same weights, threads and prompts. They run in turn, a few steps
each, so that what the machine does beside hits both. Per line: medians of tokens per second, their ratio, and
whether it reaches `--least`. Ends with 1 if one does not.
"""

import argparse
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from headrace.config.engine import EngineConfig, ExecutorConfig, MemoryConfig, ModelConfig
from headrace.core.clock import SystemClock
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.build import build_engine
from headrace.engine.engine import Engine
from headrace.kernels.dispatch import ISAS

TURN = 8
"""Decode steps of one engine before the other's turn: what it finds in the caches is its own."""


@dataclass(frozen=True)
class Work:
    """`batch` sequences that decode after `prompt` tokens, or whose prompts are read, if `is_prefill`."""

    name: str
    batch: int
    prompt: int
    turns: int
    is_prefill: bool = False


WORK = (
    Work("decode, 1 sequence at 256 tokens", 1, 256, 12),
    Work("decode, 16 sequences at 256 tokens", 16, 256, 8),
    Work("prefill, prompts of 512 tokens", 1, 512, 7, is_prefill=True),
    Work("decode, 1 sequence at 8,000 tokens", 1, 8000, 8),
)


def build(args: argparse.Namespace, isa: Any) -> Engine:
    config = EngineConfig(
        model=ModelConfig(model=args.model),
        memory=MemoryConfig(kv_memory="768MiB", prefix_cache=False, kv_dtype=args.kv_dtype),
        executor=ExecutorConfig(isa=isa, threads=args.threads),
    )
    return build_engine(config, SystemClock(), lambda phase: None).engine


def add(engine: Engine, work: Work, rng: random.Random) -> None:
    """Sequences that never end by themselves while they are measured."""
    for number in range(work.batch):
        prompt = [rng.randrange(1000, 30_000) for _ in range(work.prompt)]
        params = SamplingParams(temperature=0.0, max_tokens=160, ignore_eos=True)
        engine.add(Request(request_id=str(number), prompt=(TokenSegment(prompt),), params=params))


def drain(engine: Engine, work: Work) -> None:
    for number in range(work.batch):
        engine.cancel(str(number))
    while engine.has_work():
        engine.step()


def step_until_decode(engine: Engine, work: Work) -> None:
    """Steps until all sequences have decoded together once."""
    while True:
        engine.step()
        step = engine.last_step
        if step and not step.num_prefill_tokens and step.num_sequences == work.batch:
            return


def prefill_rate(engine: Engine, work: Work, rng: random.Random) -> list[float]:
    """Tokens per second of reading one prompt."""
    add(engine, work, rng)
    tokens, began = 0, time.perf_counter()
    while tokens < work.batch * work.prompt:
        engine.step()
        tokens += engine.last_step.num_prefill_tokens if engine.last_step else 0
    seconds = time.perf_counter() - began
    drain(engine, work)
    return [tokens / seconds]


def decode_rates(engine: Engine, work: Work) -> list[float]:
    """Tokens per second of each step of a turn; the first only warms the caches."""
    rates = []
    for _ in range(TURN):
        began = time.perf_counter()
        engine.step()
        rates.append(work.batch / (time.perf_counter() - began))
    return rates[1:]


def measure(engines: dict[str, Engine], work: Work) -> dict[str, float]:
    """Median tokens per second of each engine."""
    found: dict[str, list[float]] = {isa: [] for isa in engines}
    rng = random.Random(work.name)
    if not work.is_prefill:
        for engine in engines.values():
            add(engine, work, rng)
            step_until_decode(engine, work)
    for _ in range(work.turns):
        for isa, engine in engines.items():
            if work.is_prefill:
                found[isa] += prefill_rate(engine, work, rng)
            else:
                found[isa] += decode_rates(engine, work)
    if not work.is_prefill:
        for engine in engines.values():
            drain(engine, work)
    return {isa: statistics.median(rates) for isa, rates in found.items()}


def options() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--isas", nargs=2, choices=ISAS, default=["avx2", "avx512"])
    parser.add_argument("--least", type=float, default=0.45, help="what the first must reach")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--work", default="", help="only lines whose names hold this")
    return parser.parse_args()


def main() -> None:
    args = options()
    tried, best = args.isas
    engines = {isa: build(args, isa) for isa in args.isas}
    print(f"{args.model}, {args.threads} threads, tokens per second, in turn")
    print(f"{'':36} {tried:>9} {best:>9}  ratio")
    has_failed = False
    for work in WORK:
        if args.work not in work.name:
            continue
        rates = measure(engines, work)
        ratio = rates[tried] / rates[best]
        has_failed |= ratio < args.least
        verdict = "" if ratio >= args.least else f"  below {args.least}"
        print(
            f"{work.name:36} {rates[tried]:9.1f} {rates[best]:9.1f} {ratio:6.2f}{verdict}",
            flush=True,
        )
    for engine in engines.values():
        engine.close()
    if has_failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
