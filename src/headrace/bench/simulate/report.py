"""A simulation on paper: a table for people, JSON for machines."""

from typing import Any

import msgspec
from msgspec import Struct

from headrace import __version__
from headrace.bench.measure import Distribution
from headrace.bench.simulate.options import SimulateOptions
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.tally import Moment, Tally
from headrace.bench.simulate.virtual_time import START_WALL
from headrace.fleet.autoscaler.values import Decision

SCHEMA = 1
#: Decisions that a table shows, of those that changed something.
_SHOWN = 40


class Report(Struct, frozen=True, kw_only=True):
    """Everything needed to read a figure later, or to run it again."""

    schema: int
    headrace: str
    options: dict[str, Any]
    profile: Profile
    num_requests: int
    errors: dict[str, int]
    """Requests without a whole answer, by kind."""
    attainment: float
    """Share of all requests that were answered within the objectives."""
    replica_hours: float
    cost: float
    """Of the replica hours."""
    mean_replicas: float
    peak_replicas: int
    num_boots: int
    num_boot_failures: int
    num_kills: int
    prompt_tokens: int
    output_tokens: int
    cached_share: float
    """Of prompt tokens, those that came from prefix caches."""
    output_tokens_per_second: float
    ttft: Distribution
    tpot: Distribution
    e2e: Distribution
    decisions: tuple[Decision, ...]
    """Those that changed the number of replicas."""
    moments: tuple[Moment, ...]


def make_report(
    options: SimulateOptions,
    profile: Profile,
    tally: Tally,
    decisions: tuple[Decision, ...],
    hourly_cost: float,
) -> Report:
    """The figures of a run that is over."""
    ttft, tpot, e2e = tally.distributions()
    hours = tally.replica_hours
    return Report(
        schema=SCHEMA,
        headrace=__version__,
        options=msgspec.to_builtins(options),
        profile=profile,
        num_requests=tally.num_arrived,
        errors=dict(tally.errors.most_common()),
        attainment=tally.num_good / max(1, tally.num_arrived),
        replica_hours=hours,
        cost=hours * hourly_cost,
        mean_replicas=3600 * hours / tally.duration,
        peak_replicas=tally.peak_replicas,
        num_boots=tally.num_boots,
        num_boot_failures=tally.num_boot_failures,
        num_kills=tally.num_kills,
        prompt_tokens=tally.prompt_tokens,
        output_tokens=tally.output_tokens,
        cached_share=tally.cached_tokens / max(1, tally.prompt_tokens),
        output_tokens_per_second=tally.output_tokens / max(tally.duration, tally.last_end),
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        decisions=decisions,
        moments=tuple(tally.moments),
    )


def to_json(report: Report) -> str:
    """Indented JSON; durations in seconds."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def table(report: Report) -> str:
    """The figures for a terminal."""
    failed = sum(report.errors.values())
    duration = report.options["load"]["duration"]
    lines = [
        f"{report.num_requests} requests in {_time(duration)} · {report.profile.model}"
        f" · {report.options['mode']} mode · seed {report.options['seed']}",
        f"  within {report.options['slo']}: {100 * report.attainment:.2f} %",
        f"  replicas: {report.mean_replicas:.2f} on average, {report.peak_replicas} at most · "
        f"{report.replica_hours:.2f} replica-hours · cost {report.cost:.2f}",
        f"  output {report.output_tokens_per_second:.1f} tok/s · "
        f"{100 * report.cached_share:.1f} % of prompt tokens from caches",
        f"  {'':8}" + "".join(f"{name:>10}" for name in Distribution.__struct_fields__),
    ]
    for name, values in (("TTFT", report.ttft), ("TPOT", report.tpot), ("E2E", report.e2e)):
        figures = "".join(map(_milliseconds, msgspec.structs.astuple(values)))
        lines.append(f"  {name + ' ms':8}{figures}")
    if failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
        lines.append(f"  {failed} without an answer: {kinds}")
    if report.num_boots or report.num_kills:
        lines.append(
            f"  {report.num_boots} starts, {report.num_boot_failures} of them failed; "
            f"{report.num_kills} replicas killed"
        )
    return "\n".join(lines)


def decision_log(report: Report) -> str:
    """The last decisions that changed something, one a line."""
    lines = [
        f"  {_time(one.at - START_WALL)}  {one.current:>4} -> {one.desired:<4} {one.policy}: {one.reason}"
        + (f" [{one.limited_by}]" if one.limited_by else "")
        for one in report.decisions[-_SHOWN:]
    ]
    left = len(report.decisions) - len(lines)
    return "\n".join([f"  … {left} before", *lines] if left > 0 else lines)


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _milliseconds(seconds: float | None) -> str:
    return f"{'-':>10}" if seconds is None else f"{1000 * seconds:>10.2f}"
