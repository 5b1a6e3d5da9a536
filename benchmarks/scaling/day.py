"""A day of traffic for each policy of the autoscaler, against fixed fleets and plain utilisation scaling.

    python benchmarks/scaling/day.py --traces DIRECTORY            writes benchmarks/results/scaling-day.json and .md

Arrivals and lengths are recorded ones (Azure 2023, Mooncake), repeated over a day of 24 hours under a daily curve that takes
requests away; at its top the traces come as they were recorded. Replicas are those of the built-in profile, and start in its
time, or in 30 s. The fixed fleet is the smallest that keeps 99 % of requests within the objectives: it does over the whole day,
and one replica less does not. Traces are not part of the repository: see docs/results/scaling.md.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil
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
#: Policy → YAML of ScalingConfig beside it.
POLICIES = {
    "tokens_per_second": "",
    "utilisation": "",
    "predictive": "",
    "queue": "",
    "slots": "",
    "slo": "",
    # As many as the fixed fleet for the half of the day with more load than the mean, and three in five for the other.
    "schedule": (
        ", schedule: [{{replicas: {day}, start: '09:00', end: '21:00'}}, "
        "{{replicas: {night}, start: '21:00', end: '09:00'}}]"
    ),
}
SLO = "ttft=5s,tpot=1s"
WANTED = 0.99
PERIOD = "5s"


#: Load at the top of the daily curve beside the mean.
TOP = 1.6
#: Seconds from the order of a replica to its first request beside the profile's own: a fleet of large models.
SLOW_START = 30.0


class Shape(NamedTuple):
    """One trace, and how it is played."""

    file: str
    own_rate: float
    """Requests a second, as recorded."""
    sources: int
    scale: float
    largest: int
    """Replicas, at most."""
    guess: int
    """Where the search for the fixed fleet begins."""


SHAPES = (
    Shape("azure_2023_conv.csv", 5.530, 1, 1.0, 96, 8),
    Shape("azure_2023_code.csv", 2.567, 2, 1.0, 96, 36),
    # These had no part in the choice of the settings.
    Shape("mooncake_conversation.jsonl", 3.401, 2, 0.5, 96, 11),
    Shape("mooncake_synthetic.jsonl", 3.907, 2, 0.5, 96, 9),
)


class Case(NamedTuple):
    """One run."""

    traces: str
    shape: Shape
    policy: str
    replicas: int
    hours: float
    boot: float | None = None


def run(case: Case) -> dict[str, Any]:
    day = 3600 * case.hours
    load = LoadOptions(
        trace=str(Path(case.traces) / case.shape.file),
        duration=day,
        day_length=day,
        curve=Curve.DAY,
        rate=case.shape.own_rate * case.shape.sources / TOP,
        sources=case.shape.sources,
        trace_scale=case.shape.scale,
        max_input_tokens=2000,
    )
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        scale = ScaleOptions(replicas=case.replicas)
        if case.policy != "fixed":
            file = Path(folder) / "fleet.yaml"
            guess = case.shape.guess
            beside = POLICIES[case.policy].format(day=guess, night=ceil(0.6 * guess))
            slo = "slo: {ttft: 5s, tpot: 1s}"
            file.write_text(
                f"pools: [{{name: day, model: m, max_replicas: {case.shape.largest}}}]\n"
                f"autoscaler: {{period: {PERIOD}, scaling: {{policy: {case.policy}, {slo}{beside}}}}}\n"
            )
            scale = ScaleOptions(replicas=case.replicas, fleet=str(file))
        report = simulate(
            SimulateOptions(
                load=load, scale=scale, place=PlaceOptions(boot_time=case.boot), slo=SLO
            )
        )
    return {
        "trace": case.shape.file,
        "rate": round(report.num_requests / day, 3),
        "boot_seconds": report.profile.boot_seconds if case.boot is None else case.boot,
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
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def smallest_fixed(case: Case, note: Callable[[dict[str, Any]], None]) -> None:
    """Up from the guess until one does, or down until one does not: attainment grows with the fleet."""
    count = case.replicas
    found = run(case)
    note(found)
    step = -1 if found["attainment"] >= WANTED else 1
    while 0 < count + step <= case.shape.largest:
        count += step
        found = run(case._replace(replicas=count))
        note(found)
        if (found["attainment"] >= WANTED) == (step > 0):
            return


def smallest(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The smallest fixed fleet that does, of those that were run."""
    fixed = [r for r in results if r["policy"] == "fixed" and r["attainment"] >= WANTED]
    return min(fixed, key=lambda r: r["replicas"], default=None)


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    for trace in dict.fromkeys(r["trace"] for r in results):
        own = [r for r in results if r["trace"] == trace]
        best = smallest(own)
        lines += [
            f"**{trace}**, {own[0]['rate']:.2f} requests a second on average, {own[0]['requests']:,} in all",
            "",
            "| | start | within objectives | replica-hours | beside the fixed fleet | at most | starts |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for r in own:
            is_fixed = r["policy"] == "fixed"
            name = f"fixed, {r['replicas']}" if is_fixed else r["policy"]
            start = "" if is_fixed else f"{r['boot_seconds']:g} s"
            beside = (
                ""
                if best is None
                else f"{100 * (r['replica_hours'] / best['replica_hours'] - 1):+.0f} %"
            )
            lines.append(
                f"| {name} | {start} | {100 * r['attainment']:.2f} % | {r['replica_hours']:.1f} | {beside} | "
                f"{r['peak_replicas']} | {r['starts']} |"
            )
        lines.append("")
    return "\n".join(lines)


def write(out: str, hours: float, results: list[dict[str, Any]]) -> None:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"date": date, "slo": SLO, "hours": hours, "period": PERIOD}
    Path(f"{out}.json").write_text(json.dumps({**about, "runs": results}, indent=1) + "\n")
    Path(f"{out}.md").write_text(
        f"# A day for each policy, {date[:10]}\n\nObjectives: {SLO}.\n\n{table(results)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", required=True)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--slow-start", nargs="*", default=["tokens_per_second", "utilisation"],
                        help="policies that are run with starts of 30 s too")  # fmt: skip
    parser.add_argument("--shapes", nargs="+", type=int, default=range(len(SHAPES)))
    parser.add_argument("--out", default=str(RESULTS / "scaling-day"))
    options = parser.parse_args()
    results: list[dict[str, Any]] = []

    def note(found: dict[str, Any]) -> None:
        results.append(found)
        print(json.dumps(found), flush=True)
        write(options.out, options.hours, results)

    shapes = [SHAPES[i] for i in options.shapes]
    for shape in shapes:
        smallest_fixed(Case(options.traces, shape, "fixed", shape.guess, options.hours), note)
    for policy in options.policies:
        for shape in shapes:
            case = Case(options.traces, shape, policy, 4, options.hours)
            note(run(case))
            if policy in options.slow_start:
                note(run(case._replace(boot=SLOW_START)))


if __name__ == "__main__":
    main()
