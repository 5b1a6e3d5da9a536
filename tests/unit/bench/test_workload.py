from itertools import pairwise
from pathlib import Path

import pytest

from headrace.bench.options import Arrivals, BenchOptions
from headrace.bench.trace import TraceRow, read_trace
from headrace.bench.workload import Run, make_items, plan_runs
from headrace.core.errors import ConfigError

CLOSED = Run(label="", concurrency=2, num_requests=5)
OPEN = Run(label="", rate=50.0, num_requests=2000)
REPLAY = Run(label="", num_requests=100)


def test_the_same_seed_is_the_same_load_and_another_seed_shares_no_prompt() -> None:
    options = BenchOptions(input_words=20, output_tokens=3)
    first = list(make_items(CLOSED, options, [], 1))
    assert first == list(make_items(CLOSED, options, [], 1))
    other = list(make_items(CLOSED, options, [], 2))
    assert not {item.prompt for item in first} & {item.prompt for item in other}
    assert len(first) == 5
    assert {len(item.prompt.split()) for item in first} == {20}
    assert {item.max_tokens for item in first} == {3}


def test_runs_of_one_measurement_share_no_prompt() -> None:
    options = BenchOptions(input_words=20)
    one = {item.prompt for item in make_items(CLOSED, options, [], 1)}
    two = {item.prompt for item in make_items(OPEN, options, [], 1)}
    assert not one & two


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    items = list(make_items(CLOSED, BenchOptions(input_words=5, shared_words=30), [], 1))
    words = [item.prompt.split() for item in items]
    assert len({tuple(w[:30]) for w in words}) == 1
    assert len({tuple(w[30:]) for w in words}) == 5
    assert {len(w) for w in words} == {35}


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    poisson = [item.at for item in make_items(OPEN, BenchOptions(input_words=1), [], 3)]
    assert poisson[0] == 0.0
    assert all(a <= b for a, b in pairwise(poisson))
    assert poisson[-1] / (len(poisson) - 1) == pytest.approx(1 / 50, rel=0.1)
    options = BenchOptions(input_words=1, arrivals=Arrivals.CONSTANT)
    constant = [item.at for item in make_items(OPEN, options, [], 3)]
    assert constant[100] == pytest.approx(2.0)


def test_equal_blocks_of_a_trace_are_equal_words() -> None:
    trace = [
        TraceRow(0.0, 1024, 5, (7, 8)),
        TraceRow(4.0, 900, 6, (7, 9)),
        TraceRow(6.0, 100, 0, ()),
    ]
    options = BenchOptions(trace="t", trace_scale=0.125, trace_speed=2.0)
    first, second, third = make_items(REPLAY, options, trace, 1)
    block = 512 // 8
    assert first.prompt.split()[:block] == second.prompt.split()[:block]
    assert first.prompt.split()[block:] != second.prompt.split()[block:]
    assert [len(item.prompt.split()) for item in (first, second, third)] == [128, 112, 12]
    assert [item.at for item in (first, second, third)] == [0.0, 2.0, 3.0]
    assert [item.max_tokens for item in (first, second, third)] == [1, 1, 1]


def test_lengths_of_a_trace_can_be_bounded() -> None:
    options = BenchOptions(trace="t", max_input_tokens=10, max_output_tokens=4)
    (item,) = make_items(REPLAY, options, [TraceRow(0.0, 5000, 600, (1, 2, 3))], 1)
    assert (len(item.prompt.split()), item.max_tokens) == (10, 4)


def test_which_runs_are_planned() -> None:
    trace = [TraceRow(0.0, 1, 1)] * 9
    assert [run.concurrency for run in plan_runs(BenchOptions(), [])] == [1, 4, 16]
    assert [run.num_requests for run in plan_runs(BenchOptions(), [])] == [4, 8, 32]
    (rated,) = plan_runs(BenchOptions(rate=(4.0,)), [])
    assert (rated.rate, rated.num_requests, rated.concurrency) == (4.0, 120, None)
    (replay,) = plan_runs(BenchOptions(trace="t", trace_speed=3.0), trace)
    assert (replay.label, replay.num_requests, replay.rate) == ("trace at 3x", 9, None)
    both = plan_runs(BenchOptions(trace="t", concurrency=(2,), rate=(1.0,), num_requests=7), trace)
    assert [run.num_requests for run in both] == [7, 7]


MOONCAKE = '{"timestamp": 2000, "input_length": 3, "output_length": 4, "hash_ids": [1]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def test_mooncake_and_azure_traces(tmp_path: Path) -> None:
    mooncake = tmp_path / "m.jsonl"
    mooncake.write_text(MOONCAKE + "\n" + MOONCAKE.replace("2000", "500").replace("[1]", "[2,3]"))
    assert read_trace(mooncake) == [TraceRow(0.0, 3, 4, (2, 3)), TraceRow(1.5, 3, 4, (1,))]
    assert len(read_trace(mooncake, limit=1)) == 1
    azure = tmp_path / "a.csv"
    azure.write_text(
        "\ufeff"
        + AZURE
        + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:16:46.6805900,1,2\r\n"
    )
    assert read_trace(azure) == [TraceRow(0.0, 374, 44), TraceRow(60.0, 1, 2)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.jsonl", MOONCAKE + "{}\n", "Line 2 of the trace"),
        ("m.jsonl", "nope\n", "Line 1 of the trace"),
        ("m.jsonl", MOONCAKE.replace("3", "-3"), "Line 1"),
        ("m.jsonl", "", "has no requests"),
        ("a.csv", AZURE + "yesterday,1,2\n", "Line 2 of the trace"),
        ("a.csv", AZURE + "2023-11-16 18:15:46,x,2\n", "Line 2 of the trace"),
        ("a.csv", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens is wanted"),
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path / name)


def test_a_missing_or_binary_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="is not text"):
        read_trace(tmp_path / "raw")
