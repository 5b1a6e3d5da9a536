"""Detailed mode against a real server on this machine: calibrate, play the same small load on both, compare.

python benchmarks/scaling/real_run.py            the machine must do nothing else
"""

import argparse
import json
import tempfile
from pathlib import Path
from random import Random

import msgspec

from headrace.bench.measure import Summary
from headrace.bench.options import BenchOptions
from headrace.bench.session import measure
from headrace.bench.simulate.calibrate import calibrate
from headrace.bench.simulate.detailed import run_detailed
from headrace.bench.simulate.options import LoadOptions, ScaleOptions, SimulateOptions
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.tally import Tally, read_slo
from headrace.bench.trace import read_trace
from headrace.cli.local_server import local_server
from headrace.core.clock import SystemClock

RESULTS = Path(__file__).parents[1] / "results"


def write_load(path: Path, seconds: float, rate: float) -> None:
    """Requests with lengths of their own, as a Mooncake file."""
    rng, at = Random(11), 0.0
    with path.open("w") as file:
        while (at := at + rng.expovariate(rate)) < seconds:
            row = {
                "timestamp": round(1000 * at),
                "input_length": rng.randrange(50, 400),
                "output_length": rng.randrange(20, 80),
            }
            file.write(json.dumps(row) + "\n")


def simulated(trace: Path, seconds: float, profile: Profile) -> Tally:
    rows = read_trace(trace)
    tally = Tally(read_slo("ttft=2s"), seconds)
    options = SimulateOptions(load=LoadOptions(duration=seconds), scale=ScaleOptions(replicas=1))
    run_detailed(options, profile, iter(rows), tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "load.jsonl"
        write_load(trace, options.seconds, options.rate)
        with local_server([options.model], ready_timeout=60) as server:
            profile = calibrate(server.url, None, SystemClock(), seed=5, budget=512, show=print)
            bench = BenchOptions(url=server.url, trace=str(trace), seed=6)
            real: Summary = measure(bench, SystemClock()).runs[0]
        tally = simulated(trace, options.seconds, profile)
    ttft, tpot, _ = tally.distributions()
    seconds = max(tally.last_end, 1e-9)
    figures = {
        "ttft_mean": (real.ttft.mean, ttft.mean),
        "tpot_mean": (real.tpot.mean, tpot.mean),
        "output_tokens_per_second": (
            real.output_tokens_per_second,
            tally.output_tokens / seconds,
        ),
    }
    found = {
        name: {"real": a, "simulated": b, "difference": b / a - 1 if a and b else None}
        for name, (a, b) in figures.items()
    }
    print(json.dumps(found, indent=1))
    result = {"profile": msgspec.to_builtins(profile), "requests": real.num_ok, "figures": found}
    (RESULTS / "simulated-against-real.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
