from itertools import pairwise
from pathlib import Path

import pytest

from headrace.bench.simulate.arrivals import arrivals, block_tokens, level
from headrace.bench.simulate.options import Curve, LoadOptions
from headrace.core.errors import ConfigError

MOONCAKE = """
{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [0, 1]}
{"timestamp": 1000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 2, 3]}
{"timestamp": 3000, "input_length": 512, "output_length": 30, "hash_ids": [4]}
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    return str(path)


def test_a_synthetic_load_has_its_rate_its_means_and_its_seed() -> None:
    options = LoadOptions(duration=5000.0, rate=2.0, input_tokens=300, output_tokens=50)
    rows = list(arrivals(options, 7, 8192))
    assert rows == list(arrivals(options, 7, 8192))
    assert rows != list(arrivals(options, 8, 8192))
    assert len(rows) == pytest.approx(10_000, rel=0.05)
    assert sum(r.input_tokens for r in rows) / len(rows) == pytest.approx(300, rel=0.05)
    assert sum(r.output_tokens for r in rows) / len(rows) == pytest.approx(50, rel=0.05)
    assert all(a.at <= b.at for a, b in pairwise(rows))


def test_without_variation_all_requests_are_alike() -> None:
    options = LoadOptions(duration=100.0, variation=0.0, shared_tokens=1024)
    rows = list(arrivals(options, 0, 8192))
    assert {(r.input_tokens, r.output_tokens, r.blocks) for r in rows} == {(1536, 128, (0, 1))}


def test_a_trace_begins_again_and_shares_nothing_with_its_last_round(trace: str) -> None:
    rows = list(arrivals(LoadOptions(trace=trace, duration=8.0), 0, 8192))
    assert [r.at for r in rows] == pytest.approx([0.0, 1.0, 3.0, 4.0, 5.0, 7.0])
    assert [r.output_tokens for r in rows] == [10, 20, 30, 10, 20, 30]
    # Only whole blocks of a prompt count: the third one of the second row has 76 tokens.
    assert [r.blocks for r in rows[:3]] == [(0, 1), (0, 2), (4,)]
    assert not {b for r in rows[:3] for b in r.blocks} & {b for r in rows[3:] for b in r.blocks}


def test_a_trace_takes_a_rate_and_a_scale(trace: str) -> None:
    options = LoadOptions(trace=trace, duration=400.0, rate=3.0, trace_scale=0.25)
    rows = list(arrivals(options, 0, 8192))
    assert len(rows) == pytest.approx(1200, abs=3)
    assert block_tokens(options) == 128
    assert rows[0].input_tokens == 256
    assert rows[0].blocks == (0, 1)


def test_more_sources_begin_elsewhere_and_keep_the_pace(trace: str) -> None:
    options = LoadOptions(trace=trace, duration=8.0, sources=2)
    rows = list(arrivals(options, 0, 8192))
    # The second one begins two seconds into the four of the trace.
    times = sorted([0.0, 1.0, 3.0, 4.0, 5.0, 7.0, *[1.0, 2.0, 3.0, 5.0, 6.0, 7.0]])
    assert [r.at for r in rows] == pytest.approx(times)
    assert sorted(r.output_tokens for r in rows if r.at < 4) == [10, 10, 20, 20, 30, 30]
    seen = [set(r.blocks) for r in rows if r.output_tokens == 30]
    assert len(set.union(*seen)) == len(seen)  # no two share anything
    rate = LoadOptions(trace=trace, duration=400.0, rate=3.0, sources=4)
    assert len(list(arrivals(rate, 0, 8192))) == pytest.approx(1200, abs=12)


def test_a_curve_takes_requests_away_and_moves_none(trace: str) -> None:
    own = LoadOptions(trace=trace, duration=4000.0)
    curved = LoadOptions(
        trace=trace, duration=4000.0, day_length=4000.0, curve=Curve.DAY, rate=0.75 / 1.6
    )
    all_times = {round(r.at, 6) for r in arrivals(own, 0, 8192)}
    times = [round(r.at, 6) for r in arrivals(curved, 0, 8192)]
    assert set(times) <= all_times
    assert len(times) == pytest.approx(len(all_times) / 1.6, rel=0.05)


def test_prompts_and_answers_are_cut_to_the_context(trace: str) -> None:
    for row in arrivals(LoadOptions(trace=trace, duration=4.0), 0, 40):
        assert row.input_tokens + row.output_tokens < 40
        assert row.input_tokens >= 1
    (first, *_) = arrivals(LoadOptions(trace=trace, duration=4.0, max_input_tokens=600), 0, 8192)
    assert (first.input_tokens, first.blocks) == (600, (0,))


def test_a_day_has_a_peak_in_the_afternoon_and_keeps_its_mean() -> None:
    options = LoadOptions(
        duration=2400.0, day_length=2400.0, rate=5.0, curve=Curve.DAY, peak_ratio=3.0
    )
    hours = [0] * 24
    rows = list(arrivals(options, 1, 8192))
    for row in rows:
        hours[int(row.at // 100)] += 1
    assert len(rows) == pytest.approx(12_000, rel=0.05)
    assert sum(hours[14:16]) / sum(hours[2:4]) == pytest.approx(3.0, rel=0.25)
    assert level(options, 1500.0) / level(options, 300.0) == pytest.approx(3.0)


def test_a_trace_without_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flat.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 1, "output_length": 1}\n' * 3)
    with pytest.raises(ConfigError, match="at once"):
        list(arrivals(LoadOptions(trace=str(path)), 0, 100))


def test_several_sources_of_no_trace_are_refused() -> None:
    with pytest.raises(ConfigError, match="--sources needs a --trace"):
        list(arrivals(LoadOptions(sources=2), 0, 100))
