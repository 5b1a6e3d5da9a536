import pytest

from headrace.bench.client import Outcome
from headrace.bench.measure import parse_slo, percentile, summarize
from headrace.bench.report import table
from headrace.core.errors import ConfigError


def done(due: float, *chunks: float, tokens: int | None = None, ended: float = 0.0) -> Outcome:
    return Outcome(
        due=due,
        chunks=list(chunks),
        ended=ended or chunks[-1],
        prompt_tokens=10,
        output_tokens=tokens,
    )


def failed(kind: str, detail: str = "") -> Outcome:
    return Outcome(due=0.0, chunks=[], error=kind, detail=detail)


def test_figures_of_a_run_worked_by_hand() -> None:
    outcomes = [
        done(0.0, 1.0, 1.5, 2.5, tokens=4, ended=3.0),
        done(1.0, 1.5, 2.0, tokens=2),
        failed("http 429", "full"),
        failed("http 429", "full again"),
        failed("connect"),
    ]
    summary = summarize("x", outcomes, 4.0, {})
    assert (summary.num_requests, summary.num_ok) == (5, 2)
    assert summary.errors == {"http 429": 2, "connect": 1}
    assert summary.error_examples["http 429"] == "full"
    assert (summary.output_tokens, summary.prompt_tokens) == (6, 20)
    assert summary.output_tokens_per_second == 1.5
    assert summary.total_tokens_per_second == 6.5
    assert summary.requests_per_second == 0.5
    assert (summary.ttft.mean, summary.ttft.max) == (0.75, 1.0)
    assert (summary.tpot.p50, summary.tpot.mean) == (0.5, 0.5)
    assert (summary.itl.p50, summary.itl.max) == (0.5, 1.0)
    assert (summary.e2e.p99, summary.e2e.mean) == (3.0, 2.0)
    assert summary.goodput is None
    assert summary.are_tokens_counted_by_server


def test_goodput_counts_requests_that_keep_every_bound_among_all_that_were_sent() -> None:
    fast, late, jerky = done(0, 0.1, 0.2), done(0, 2.0, 2.1), done(0, 0.1, 1.1)
    outcomes = [fast, late, jerky, failed("timeout")]
    summary = summarize("x", outcomes, 2.0, {"ttft": 0.5, "itl": 0.5})
    assert (summary.goodput, summary.good_share) == (0.5, 0.25)
    assert summarize("x", outcomes, 2.0, {"e2e": 1.2}).good_share == 0.5
    assert summarize("x", outcomes, 2.0, {"tpot": 0.2}).good_share == 0.5


def test_without_usage_chunks_are_counted_and_the_table_says_so() -> None:
    summary = summarize("x", [done(0.0, 1.0, 2.0)], 2.0, {})
    assert summary.output_tokens == 2
    assert not summary.are_tokens_counted_by_server
    assert "output tokens are chunks" in table(summary)


def test_a_run_in_which_all_failed_still_has_a_report() -> None:
    summary = summarize("x", [failed("connect", "refused")], 0.0, {"ttft": 1.0})
    assert (summary.num_ok, summary.output_tokens_per_second, summary.goodput) == (0, 0.0, 0.0)
    assert summary.ttft.p50 is None
    text = table(summary)
    assert "1 failed: connect (refused)" in text
    assert "TTFT ms" in text


def test_percentiles_are_members_of_the_data() -> None:
    data = [float(i) for i in range(100)]
    assert [percentile(data, p) for p in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 99.0]
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([], 0.5) is None


def test_slo() -> None:
    assert parse_slo("ttft=500ms, itl=0.05,e2e=2m") == {"ttft": 0.5, "itl": 0.05, "e2e": 120.0}
    assert parse_slo(None) == {}


@pytest.mark.parametrize("text", ["ttft", "speed=1s", "ttft=fast", "ttft=", "=1s"])
def test_a_bad_slo_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        parse_slo(text)
