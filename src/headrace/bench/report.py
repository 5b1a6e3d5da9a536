"""A measurement on paper: a table for people, JSON for machines, both with what it was run on."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from headrace import __version__
from headrace.bench.measure import Distribution, Summary
from headrace.bench.options import BenchOptions

SCHEMA = 1


class Report(Struct, frozen=True, kw_only=True):
    """Everything needed to read a figure later, or to run it again."""

    schema: int
    date: str
    headrace: str
    machine: dict[str, Any]
    server: dict[str, Any]
    """What the server said of itself."""
    model: str
    seed: int
    options: dict[str, Any]
    runs: list[Summary]


def make_report(
    options: BenchOptions,
    runs: list[Summary],
    *,
    model: str,
    seed: int,
    server: dict[str, Any],
    wall_time: float,
) -> Report:
    """Put the figures together with their circumstances. The API key is left out."""
    shown = msgspec.to_builtins(msgspec.structs.replace(options, api_key=None))
    return Report(
        schema=SCHEMA,
        date=datetime.fromtimestamp(wall_time, UTC).isoformat(timespec="seconds"),
        headrace=__version__,
        machine=_machine(),
        server=server,
        model=model,
        seed=seed,
        options=shown,
        runs=runs,
    )


def to_json(report: Report) -> str:
    """Indented JSON; durations in seconds."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def headline(report: Report) -> str:
    """One line: what was measured where."""
    cpu = f"{report.machine['cpu']}, {report.machine['usable_cpus']} CPUs"
    return f"{report.model} at {report.options['url']} · {cpu} · {report.date} · seed {report.seed}"


def table(summary: Summary) -> str:
    """One run's figures."""
    lines = [
        f"{summary.label} · {summary.num_ok} of {summary.num_requests} requests "
        f"in {summary.seconds:.2f} s",
        f"  output {summary.output_tokens_per_second:.1f} tok/s · "
        f"total {summary.total_tokens_per_second:.1f} tok/s · "
        f"{summary.requests_per_second:.2f} requests/s{_goodput(summary)}",
        f"  {'':8}" + "".join(f"{name:>10}" for name in Distribution.__struct_fields__),
        *(
            f"  {name + ' ms':8}" + "".join(map(_milliseconds, msgspec.structs.astuple(values)))
            for name, values in (
                ("TTFT", summary.ttft),
                ("TPOT", summary.tpot),
                ("ITL", summary.itl),
                ("E2E", summary.e2e),
            )
        ),
    ]
    lines += [
        f"  {count} failed: {kind}{_example(summary, kind)}"
        for kind, count in summary.errors.items()
    ]
    if summary.num_ok and not summary.are_tokens_counted_by_server:
        lines.append("  The server sent no usage; output tokens are chunks.")
    return "\n".join(lines)


def _goodput(summary: Summary) -> str:
    if summary.goodput is None or summary.good_share is None:
        return ""
    return f" · goodput {summary.goodput:.2f} requests/s ({100 * summary.good_share:.0f} %)"


def _milliseconds(seconds: float | None) -> str:
    return f"{'-':>10}" if seconds is None else f"{1000 * seconds:>10.2f}"


def _example(summary: Summary, kind: str) -> str:
    detail = summary.error_examples.get(kind)
    return f" ({detail})" if detail else ""


def machine_name() -> str:
    """The CPU, and how much of it this process may use."""
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} CPUs"


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
