"""What the dashboard keeps: bounded, incremental, and true to what it was told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadRequestError
from headrace.fleet.dashboard.dashboard import read_look
from headrace.fleet.dashboard.requests import (
    MAX_NAME,
    FinishedRing,
)
from headrace.fleet.dashboard.series import Series
from headrace.fleet.dashboard.snapshot import Look
from headrace.fleet.dashboard.tally import MAX_NAMES, Tally
from headrace.fleet.gateway.accounts.ledger import UsageRow
from headrace.fleet.gateway.pulse import BOUNDS, Pulse, Spread, quantile
from headrace.fleet.gateway.request_meter import Finished, Result


def request(*, result: Result = Result.OK, **fields: object) -> Finished:
    given = {"request_id": "r", "time": 0.0, "key": "k", "tenant": "t", "model": "m"}
    row = UsageRow(**{**given, **fields})
    return Finished(row=row, priority="standard", result=result)


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 8))
def test_a_page_that_asks_again_and_again_has_what_is_kept(steps: list[int], length: int) -> None:
    series = Series(("a", "b"), resolution=1.0, length=length)
    seen: list[float | None] = []
    end = told = 0
    for step in steps:
        for _ in range(step):
            series.add({"a": float(told)})
            told += 1
        part = series.after(end)
        if part.first > end:  # more came than is kept
            seen = []
        seen += part.columns["a"]
        assert part.columns["b"] == [None] * len(part.columns["a"])
        assert part.end == told
        end = part.end
        assert seen[-length:] == [float(n) for n in range(max(0, told - length), told)]


@pytest.mark.parametrize("number", [0, 5, 10**12])
def test_a_series_is_asked_for_any_number(number: int) -> None:
    series = Series(("a",), resolution=10.0, length=3)
    assert series.after(number).columns == {"a": []}
    series.add({"a": 1.0})
    part = series.after(number)
    assert part.first + len(part.columns["a"]) == part.end == 1


@given(st.lists(st.integers(0, 9), max_size=20))
def test_requests_are_told_once(steps: list[int]) -> None:
    ring = FinishedRing(length=10)
    seen: list[str] = []
    end = told = 0
    for step in steps:
        for _ in range(step):
            ring.add(request(request_id=str(told)))
            told += 1
        part = ring.after(end)
        seen += [item.request_id for item in part.items]
        end = part.end
    assert seen == [str(n) for n in range(told)]
    assert [item.request_id for item in ring.after(0).items] == seen[-10:]


def test_names_of_clients_are_bounded() -> None:
    row = UsageRow(time=0.0, request_id="r" * 300, key="k", tenant="t" * 300, model="m" * 5000)
    ring = FinishedRing()
    ring.add(Finished(row=row, priority="standard", result=Result.OK))
    (item,) = ring.after(0).items
    assert {len(item.model), len(item.tenant), len(item.request_id)} == {MAX_NAME}


def test_rows_of_a_tally_are_bounded_and_add_up() -> None:
    tally = Tally(100.0)
    for n in range(MAX_NAMES + 50):
        tally.add(
            f"tenant-{n}",
            request(prompt_tokens=2, output_tokens=3, cost=7, status=429, result=Result.LIMITED),
            130.0,
        )
    tally.add("tenant-0", request(status=502, result=Result.FAILED, prompt_tokens=60), 130.0)
    rows = {row.name: row for row in tally.rows(130.0)}
    assert len(rows) == MAX_NAMES + 1
    assert rows["other"].requests == rows["other"].refused == 50
    assert sum(row.requests for row in rows.values()) == MAX_NAMES + 51
    assert rows["tenant-0"].errors == 1
    assert rows["tenant-0"].tokens_per_second == pytest.approx(65 / 30)
    later = {row.name: row for row in tally.rows(500.0)}
    assert later["tenant-0"].tokens_per_second == 0.0
    assert later["tenant-0"].prompt_tokens == 62


@given(
    st.lists(st.floats(0.0002, 500.0), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99])
)
def test_percentiles_are_those_of_the_values(values: list[float], share: float) -> None:
    spread = Spread()
    for value in values:
        spread.note(value)
    ordered = sorted(values)
    rank = next(n for n in range(len(ordered)) if n + 1 >= share * len(ordered))
    found = quantile(spread.counts, share)
    assert found is not None
    assert found == pytest.approx(ordered[rank], rel=0.16)


def test_percentiles_of_nothing_and_of_the_extremes() -> None:
    spread = Spread()
    assert quantile(spread.counts, 0.5) is None
    spread.note(0.0)
    assert (quantile(spread.counts, 0.5) or 0) <= BOUNDS[0]
    other = Spread()
    other.note(1e9)
    assert (quantile(other.counts, 0.5) or 0) <= BOUNDS[-1]


def test_tokens_that_come_together_are_so_many_gaps() -> None:
    pulse = Pulse()
    pulse.note_first(0.5, 2)
    pulse.note_more(0.4, 4)
    pulse.note_whole(10)
    assert pulse.output_tokens == 16
    assert sum(pulse.ttft.counts) == 1
    assert sum(pulse.itl.counts) == 4
    assert quantile(pulse.itl.counts, 0.5) == pytest.approx(0.1, rel=0.16)


def test_a_look_is_read() -> None:
    assert read_look(b"") == Look()
    assert read_look(b"life=ab&fine=3&coarse=1&requests=9") == Look(
        life="ab", fine=3, coarse=1, requests=9
    )


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (b"fine=-1", "fine"),
        (b"coarse=x", "coarse"),
        (b"requests=", "requests"),
        (b"requests=9999999999999999", "requests"),
        ("fine=²".encode(), "fine"),
        (b"finer=1", "finer"),
        (b"%00=1", "\0"),
    ],
)
def test_a_bad_look_is_refused_by_name(query: bytes, name: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_look(query)
    assert caught.value.param == name
