"""From outcomes to figures.

due        chunk 0                chunk 1   …   last chunk
 |-- TTFT --|--------- gap (ITL) --|-- gap -- … --|
            |--------- TPOT x (tokens - 1) -------|
 |---------------------- E2E ---------------------- end of the stream
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from headrace.bench.client import Outcome
from headrace.config.units import parse_duration
from headrace.core.errors import ConfigError

SLO_TERMS = ("ttft", "tpot", "itl", "e2e")


class Distribution(Struct, frozen=True, kw_only=True):
    """A summary of durations, in seconds; None where there are none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of one run. Rates count successful requests over the whole run's time."""

    label: str
    num_requests: int
    num_ok: int
    errors: dict[str, int]
    """How many failed, by kind."""
    error_examples: dict[str, str]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    are_tokens_counted_by_server: bool
    """False: some answer had no usage, and its chunks were counted instead."""
    output_tokens_per_second: float
    total_tokens_per_second: float
    requests_per_second: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    goodput: float | None
    """Good requests per second, if bounds were given."""
    good_share: float | None


def parse_slo(text: str | None) -> dict[str, float]:
    """`ttft=500ms,itl=50ms` as seconds by term. Raises ConfigError."""
    bounds = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        term, equals, bound = part.partition("=")
        term = term.strip().lower()
        if not equals or term not in SLO_TERMS:
            raise ConfigError(
                f"'{part.strip()}' in --slo must be one of {', '.join(SLO_TERMS)}, '=' and a duration."
            )
        try:
            bounds[term] = parse_duration(bound)
        except ValueError as error:
            raise ConfigError(f"{term} in --slo: {error}") from None
    return bounds


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that `share` of an ascending sequence lies below; no interpolation."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def summarize(
    label: str, outcomes: Sequence[Outcome], seconds: float, slo: dict[str, float]
) -> Summary:
    """The figures of a run that took `seconds` from its first request to its last answer."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    output_tokens = sum(map(num_output_tokens, good))
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    num_within = sum(meets(outcome, slo) for outcome in good)
    seconds = max(seconds, 1e-9)
    return Summary(
        label=label,
        num_requests=len(outcomes),
        num_ok=len(good),
        errors=dict(Counter(str(outcome.error) for outcome in failed).most_common()),
        error_examples={str(outcome.error): outcome.detail for outcome in reversed(failed)},
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        are_tokens_counted_by_server=all(outcome.output_tokens is not None for outcome in good),
        output_tokens_per_second=output_tokens / seconds,
        total_tokens_per_second=(output_tokens + prompt_tokens) / seconds,
        requests_per_second=len(good) / seconds,
        ttft=distribution([ttft(outcome) for outcome in good]),
        tpot=distribution([tpot(outcome) for outcome in good]),
        itl=distribution([gap for outcome in good for gap in gaps(outcome)]),
        e2e=distribution([e2e(outcome) for outcome in good]),
        goodput=num_within / seconds if slo else None,
        good_share=num_within / max(1, len(outcomes)) if slo else None,
    )


def num_output_tokens(outcome: Outcome) -> int:
    """As the server counted, else the number of chunks."""
    return len(outcome.chunks) if outcome.output_tokens is None else outcome.output_tokens


def ttft(outcome: Outcome) -> float:
    """Time to first token: to the first chunk with a choice."""
    return outcome.chunks[0] - outcome.due


def tpot(outcome: Outcome) -> float:
    """Time per output token after the first."""
    return (outcome.chunks[-1] - outcome.chunks[0]) / max(1, num_output_tokens(outcome) - 1)


def gaps(outcome: Outcome) -> list[float]:
    """Inter-token latencies: times between chunks."""
    return [later - earlier for earlier, later in pairwise(outcome.chunks)]


def e2e(outcome: Outcome) -> float:
    """Time to the end of the stream."""
    return outcome.ended - outcome.due


def meets(outcome: Outcome, slo: dict[str, float]) -> bool:
    """A successful request keeps all bounds."""
    observed = {
        "ttft": ttft(outcome),
        "tpot": tpot(outcome),
        "itl": percentile(sorted(gaps(outcome)), 0.95) or 0.0,
        "e2e": e2e(outcome),
    }
    return all(observed[term] <= bound for term, bound in slo.items())


def distribution(values: Iterable[float]) -> Distribution:
    """A summary of durations."""
    ordered = sorted(values)
    return Distribution(
        mean=sum(ordered) / len(ordered) if ordered else None,
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1] if ordered else None,
    )
