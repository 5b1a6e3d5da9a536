"""Where a step's time goes, in this process: planning, inputs, kernels, sampling, commit.

python benchmarks/engine_step.py [--model smollm2-135m] [--batch 1] [--prompt 256] [--tokens 128]
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from typing import Any

from headrace.config.engine import EngineConfig, ExecutorConfig, ModelConfig
from headrace.core.clock import SystemClock
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.core.stats import StepStats
from headrace.engine.build import build_engine


def show_ops(program: Any) -> None:
    """Calls and time of each op of the recorded model."""
    for op, (calls, nanoseconds) in program.times().items() if program else ():
        print(f"{op:18s} {calls:7d} calls {nanoseconds / 1e6:9.1f} ms")


def split(step: StepStats, whole: float, sampling: float) -> dict[str, float]:
    """Seconds of a step by part; `sampling` is the kernel's part of the draw."""
    known = step.inputs_seconds + step.model_seconds + step.sample_seconds
    return {
        "inputs": step.inputs_seconds,
        "model": step.model_seconds,
        "sample": step.sample_seconds,
        "plan and commit": whole - known,
        "step": whole,
        # Everything that is no kernel, with the caches as the model left them.
        "python's share": whole - step.model_seconds - sampling,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--profile", action="store_true", help="time per op, all steps together")
    args = parser.parse_args()
    config = EngineConfig(
        model=ModelConfig(model=args.model),
        executor=ExecutorConfig(isa=args.isa, threads=args.threads),
    )
    engine = build_engine(config, SystemClock(), lambda phase: None).engine
    program = engine._executor._parts.program
    program.set_profiling(args.profile)
    rng = random.Random(1)
    for number in range(args.batch):
        engine.add(
            Request(
                request_id=str(number),
                prompt=(TokenSegment([rng.randrange(1000, 40000) for _ in range(args.prompt)]),),
                params=SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True),
            )
        )
    parts: dict[str, list[float]] = defaultdict(list)
    prefill_tokens, prefill_seconds = 0, 0.0
    while engine.has_work():
        began = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - began
        step = engine.last_step
        if step is None:
            continue
        if step.num_prefill_tokens:
            prefill_tokens += step.num_prefill_tokens
            prefill_seconds += whole
            continue
        if step.num_sequences < args.batch:
            continue
        for name, seconds in split(step, whole, engine._executor._sampler._draw.seconds).items():
            parts[name].append(seconds)
    print(f"prefill {prefill_tokens / max(prefill_seconds, 1e-9):8.0f} tok/s")
    for name, seconds in parts.items():
        print(f"{name:16s} {1e6 * statistics.median(seconds):9.1f} us")
    show_ops(program if args.profile else None)
    print(f"decode {args.batch / statistics.median(parts['step']):9.0f} tok/s")


if __name__ == "__main__":
    main()
