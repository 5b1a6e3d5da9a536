"""Error budgets over a restart of the gateway: what goes on, and what is left aside."""

import json
import logging
import os
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.config.fleet.slos import AlertsConfig, BurnRule, Measure, Objective, Severity
from headrace.fleet.slo.alerts import Alerts
from headrace.fleet.slo.book import SloBook
from headrace.fleet.slo.counts import NUM_SLOTS, SlidingCount
from headrace.fleet.slo.keeper import PERIOD, Keeper
from headrace.fleet.slo.values import Ended, Verdict
from headrace.fleet.slo.watch import SloWatch
from headrace.observe.metrics import Metrics

DAY = 86_400.0
TTFT = Objective(name="ttft", measure=Measure.TTFT, threshold=0.5, target=0.99)
UP = Objective(name="up", measure=Measure.AVAILABILITY, target=0.9, window=3600.0)


def note(
    book: SloBook, clock: FakeClock, count: int, *, ttft: float = 0.1, model: str = "m"
) -> None:
    for _ in range(count):
        ended = Ended(model=model, tenant="t", priority="standard", verdict=Verdict.GOOD, ttft=ttft)
        book.note(ended, clock.monotonic())


def book_of(clock: FakeClock, *objectives: Objective) -> SloBook:
    return SloBook(objectives or (TTFT, UP), AlertsConfig(), clock.monotonic())


def keeper_of(path: Path, book: SloBook, clock: FakeClock) -> Keeper:
    return Keeper(path, book, Alerts(AlertsConfig()), clock)


def written(path: Path, clock: FakeClock) -> SloBook:
    """A book of two days, on the disk."""
    book = book_of(clock)
    clock.advance(2 * DAY)
    note(book, clock, 90)
    note(book, clock, 10, ttft=1.0)
    keeper = keeper_of(path, book, clock)
    keeper.write(keeper.encode())
    return book


def restarted(clock: FakeClock, *, down: float = 0.0) -> FakeClock:
    """The clock of the next process: its monotonic time has nothing to do with that of the last."""
    return FakeClock(monotonic=3.0, wall=clock.wall() + down)


def test_budgets_go_on_after_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "deep" / "slos.json", FakeClock()
    before = {r.slo: r for r in written(path, clock).reports(clock.monotonic())}
    later = restarted(clock, down=20.0)
    book = book_of(later)
    keeper_of(path, book, later).load()
    after = {r.slo: r for r in book.reports(later.monotonic())}
    assert after.keys() == before.keys() == {"ttft", "up"}
    for name, report in after.items():
        old = before[name]
        assert (report.good, report.bad) == (old.good, old.bad)
        assert report.covered == pytest.approx(old.covered)
        assert report.budget_left == pytest.approx(old.budget_left)
    assert [b.long for b in after["ttft"].burns] == [b.long for b in before["ttft"].burns]
    note(book, later, 100, ttft=1.0)
    (report,) = [r for r in book.reports(later.monotonic()) if r.slo == "ttft"]
    assert (report.good, report.bad) == (90, 110)


def test_what_is_too_old_by_then_has_slid_out(tmp_path: Path) -> None:
    path, clock = tmp_path / "slos.json", FakeClock()
    written(path, clock)
    later = restarted(clock, down=2 * 3600.0)
    book = book_of(later)
    keeper_of(path, book, later).load()
    counts = {r.slo: r.good + r.bad for r in book.reports(later.monotonic())}
    assert counts == {"ttft": 100, "up": 0}
    later.advance(31 * DAY)
    assert {r.good + r.bad for r in book.reports(later.monotonic())} == {0}


def test_other_objectives_and_rules_begin_anew(tmp_path: Path) -> None:
    path, clock = tmp_path / "slos.json", FakeClock()
    written(path, clock)
    looser = Objective(name="ttft", measure=Measure.TTFT, threshold=0.7, target=0.99)
    book = book_of(clock, looser, UP)
    keeper_of(path, book, clock).load()
    assert [r.slo for r in book.reports(clock.monotonic())] == ["up"]
    rules = AlertsConfig(rules=(BurnRule(severity=Severity.WARNING, burn=2.0, budget=0.1),))
    book = SloBook((TTFT, UP), rules, clock.monotonic())
    keeper_of(path, book, clock).load()
    assert book.reports(clock.monotonic()) == []


def test_without_a_file_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    keeper_of(tmp_path / "none.json", book_of(clock), clock).load()
    assert caplog.records == []


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"\xff\x00" + text,
        lambda text: b"",
        lambda text: b"[" * 100_000,
        lambda text: text.replace(b'"version":1', b'"version":2'),
        lambda text: text.replace(b"90", b"-90"),
        lambda text: text.replace(b"90", b"9.5e99"),
        lambda text: json.dumps(json.loads(text) | {"written": 1e12}).encode(),
        lambda text: text.replace(b"[[", b"[" + b"[0,0]," * (NUM_SLOTS + 1) + b"[", 1),
    ],
)
def test_a_broken_file_costs_a_warning_and_nothing_else(
    tmp_path: Path, change, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "slos.json", FakeClock()
    written(path, clock)
    path.write_bytes(change(path.read_bytes()))
    book = book_of(clock)
    with caplog.at_level(logging.WARNING):
        keeper_of(path, book, clock).load()
    assert book.reports(clock.monotonic()) == []
    assert "begin anew" in caplog.text


def test_a_disk_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    (tmp_path / "file").write_text("in the way")
    keeper = keeper_of(tmp_path / "file" / "slos.json", book_of(clock), clock)
    keeper.write(keeper.encode())
    keeper.write(keeper.encode())
    assert caplog.text.count("are not kept") == 1


def test_the_file_is_due_every_minute_and_whole_at_any_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "slos.json", FakeClock()
    keeper = keeper_of(path, written(path, clock), clock)
    assert not keeper.is_due
    clock.advance(PERIOD)
    assert keeper.is_due
    keeper.write(keeper.encode())
    assert not keeper.is_due
    assert [each.name for each in tmp_path.iterdir()] == ["slos.json"]


async def test_a_watch_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path, clock = tmp_path / "slos.json", FakeClock()
    first = SloWatch((TTFT,), AlertsConfig(), Metrics(), clock, path)
    first.start()
    note(first.book, clock, 7)
    await first.close()
    second = SloWatch((TTFT,), AlertsConfig(), Metrics(), clock, path)
    second.start()
    assert [r.good for r in second.reports()] == [7]
    await second.close()


def test_the_last_write_waits_for_one_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock, is_slow, goes_on = tmp_path / "slos.json", FakeClock(), Event(), Event()

    def slow_once(_: int) -> None:
        if not is_slow.is_set():
            is_slow.set()
            goes_on.wait(PATIENCE)

    monkeypatch.setattr(os, "fsync", slow_once)
    keeper = keeper_of(path, book_of(clock), clock)
    threads = [Thread(target=keeper.write, args=(data,)) for data in (b"first", b"last")]
    threads[0].start()
    assert is_slow.wait(PATIENCE)
    threads[1].start()
    threads[1].join(0.05)  # it waits, or it would have ended by now
    goes_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert path.read_bytes() == b"last"
    assert list(tmp_path.iterdir()) == [path]
    assert not caplog.records


async def test_without_objectives_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "slos.json"
    watch = SloWatch((), AlertsConfig(), Metrics(), FakeClock(), path)
    watch.start()
    await watch.close()
    assert not path.exists()


@given(
    st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 9), st.integers(0, 9)), max_size=40),
    st.floats(0.0, 200.0),
    st.floats(0.0, 1e6),
)
def test_a_restored_window_counts_as_the_old_one_would(events, down, start) -> None:
    old, now = SlidingCount(60.0), 1000.0
    for pause, good, bad in events:
        now += pause
        old.add(now, good, bad)
    new = SlidingCount(60.0)
    new.restore(start, old.kept(now), down)
    good, bad = new.counts(start)
    earlier, later = SlidingCount(60.0), SlidingCount(60.0)
    for count, shift in ((earlier, -1.0), (later, 1.0)):  # a step is a second long
        count.restore(1000.0, old.kept(now), max(0.0, down + shift))
    assert later.counts(1000.0)[0] <= good <= earlier.counts(1000.0)[0]
    assert later.counts(1000.0)[1] <= bad <= earlier.counts(1000.0)[1]
    assert new.counts(start + 62.0) == (0, 0)
