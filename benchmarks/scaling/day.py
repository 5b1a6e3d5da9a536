"""A day of traffic for each policy of the autoscaler, against fixed fleets and plain utilisation scaling.

    python benchmarks/scaling/day.py --traces DIRECTORY            writes benchmarks/results/scaling-day.json and .md

Arrivals and lengths are recorded ones (Azure 2023, Mooncake), repeated over a day with a daily curve (`--hours 2` for a
compressed one; `--shapes` and `--policies` for a part); replicas are those of the built-in profile and take 30 s to start. The fixed fleet is the smallest that keeps
99 % of requests within the objectives. Traces are not part of the repository: see docs/results/scaling.md.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from headrace.bench.simulate.options import (
    Curve,
    LoadOptions,
    PlaceOptions,
    ScaleOptions,
    SimulateOptions,
)
from headrace.bench.simulate.run import simulate

RESULTS = Path(__file__).parents[1] / "results"
#: Name → policy, and YAML of ScalingConfig beside it.
POLICIES = {
    "tokens_per_second": ("tokens_per_second", ""),
    "predictive": ("predictive", ""),
    "queue": ("queue", ""),
    "slots": ("slots", ""),
    "slo": ("slo", ""),
    "utilisation": ("utilisation", ""),
}
SLO = "ttft=5s,tpot=1s"
WANTED = 0.99


class Shape(NamedTuple):
    """One trace, and how it is played."""

    file: str
    rate: float
    scale: float
    largest: int
    """Replicas, at most."""


SHAPES = (
    Shape("azure_2023_conv.csv", 4.0, 1.0, 24),
    Shape("mooncake_conversation.jsonl", 3.0, 0.12, 24),
    # These had no part in the choice of the settings: a trace that comes in bursts, and a larger fleet.
    Shape("azure_2023_code.csv", 4.0, 1.0, 96),
    Shape("mooncake_conversation.jsonl", 12.0, 0.12, 96),
)


class Case(NamedTuple):
    """One run."""

    traces: str
    shape: Shape
    policy: str
    replicas: int
    hours: float


def run(case: Case) -> dict[str, Any]:
    day = 3600 * case.hours
    load = LoadOptions(
        trace=str(Path(case.traces) / case.shape.file),
        duration=day,
        day_length=day,
        curve=Curve.DAY,
        rate=case.shape.rate,
        trace_scale=case.shape.scale,
        max_input_tokens=2000,
    )
    with tempfile.TemporaryDirectory() as folder:
        scale = ScaleOptions(replicas=case.replicas)
        if case.policy != "fixed":
            file = Path(folder) / "fleet.yaml"
            policy, beside = POLICIES[case.policy]
            slo = "slo: {ttft: 5s, tpot: 1s}"
            file.write_text(
                f"pools: [{{name: day, model: m, max_replicas: {case.shape.largest}}}]\n"
                f"autoscaler: {{period: 5s, scaling: {{policy: {policy}, {slo}{beside}}}}}\n"
            )
            scale = ScaleOptions(replicas=case.replicas, fleet=str(file))
        report = simulate(
            SimulateOptions(load=load, scale=scale, place=PlaceOptions(boot_time=30.0), slo=SLO)
        )
    return {
        "trace": case.shape.file,
        "rate": case.shape.rate,
        "policy": case.policy,
        "replicas": case.replicas,
        "requests": report.num_requests,
        "attainment": report.attainment,
        "replica_hours": report.replica_hours,
        "mean_replicas": report.mean_replicas,
        "peak_replicas": report.peak_replicas,
        "starts": report.num_boots,
        "ttft_p95": report.ttft.p95,
        "tpot_p95": report.tpot.p95,
        "errors": report.errors,
    }


def smallest_fixed(make: Callable[[int], Case], largest: int) -> dict[str, Any]:
    """By halving: attainment grows with the fleet."""
    low, high, best = 1, largest, None
    while low < high:
        middle = (low + high) // 2
        found = run(make(middle))
        if found["attainment"] >= WANTED:
            high, best = middle, found
        else:
            low = middle + 1
    return best if best is not None and best["replicas"] == low else run(make(low))


def rows_of(case: Case) -> dict[str, Any]:
    """One policy, or the search for the fixed fleet."""
    if case.policy == "fixed":
        return smallest_fixed(lambda count: case._replace(replicas=count), case.shape.largest)
    return run(case)


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    for trace, rate in dict.fromkeys((r["trace"], r["rate"]) for r in results):
        own = [r for r in results if (r["trace"], r["rate"]) == (trace, rate)]
        fixed = next(r for r in own if r["policy"] == "fixed")
        lines += [
            f"**{trace}**, {rate:g} requests a second on average, {fixed['requests']:,} in all",
            "",
            "| | within objectives | replica-hours | beside the fixed fleet | at most | starts |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for r in own:
            name = f"fixed, {r['replicas']}" if r["policy"] == "fixed" else r["policy"]
            share = r["replica_hours"] / fixed["replica_hours"] - 1
            lines.append(
                f"| {name} | {100 * r['attainment']:.2f} % | {r['replica_hours']:.1f} | {100 * share:+.0f} % | "
                f"{r['peak_replicas']} | {r['starts']} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", required=True)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--shapes", nargs="+", type=int, default=range(len(SHAPES)))
    parser.add_argument("--out", default=str(RESULTS / "scaling-day"))
    options = parser.parse_args()
    cases = [
        Case(options.traces, SHAPES[i], policy, 4, options.hours)
        for i in options.shapes
        for policy in ("fixed", *options.policies)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = []
        for found in pool.map(rows_of, cases):
            results.append(found)
            print(json.dumps(found), flush=True)
    text = table(results)
    print(text)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"date": date, "slo": SLO, "hours": options.hours}
    Path(f"{options.out}.json").write_text(json.dumps({**about, "runs": results}, indent=1) + "\n")
    Path(f"{options.out}.md").write_text(
        f"# A day for each policy, {date[:10]}\n\nObjectives: {SLO}.\n\n{text}"
    )


if __name__ == "__main__":
    main()
