"""Alerts over a restart of the gateway: none comes twice, none is forgotten."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.fake_clock import FakeClock
from tests.support.in_process_gateway import until
from tests.support.listening import Listener, send_json

from headrace.config.fleet.slos import AlertsConfig, Measure, Objective, Severity, Webhook
from headrace.fleet.slo.alerts import AlertState
from headrace.fleet.slo.values import Ended, Verdict
from headrace.fleet.slo.watch import SloWatch
from headrace.observe.gateway_metrics import ALERT_MESSAGES, ALERTS_FIRING
from headrace.observe.metrics import Metrics

UP = Objective(name="up", measure=Measure.AVAILABILITY, target=0.9, window=3600.0)
#: Its critical rules look at 5 minutes and more.
LONG = replace(UP, window=30 * 86_400.0)
#: Nobody listens there: what is told stays on its way.
NOWHERE = Webhook(url="http://127.0.0.1:1/", timeout=0.05, attempts=20)
CONFIG = AlertsConfig(min_bad=1, period=3600.0, resolve_after=60.0, repeat_after=600.0)
LABELS = ("m", "up", "critical")


def fail(watch: SloWatch, clock: FakeClock, count: int = 20) -> None:
    for _ in range(count):
        ended = Ended(model="m", tenant="t", priority="standard", verdict=Verdict.BAD)
        watch.book.note(ended, clock.monotonic())


def later(clock: FakeClock, down: float) -> FakeClock:
    """The clock of the next process."""
    return FakeClock(monotonic=3.0, wall=clock.wall() + down)


class Life:
    """One gateway's."""

    def __init__(self, path: Path, clock: FakeClock, *objectives: Objective, **config: Any) -> None:
        self.metrics = Metrics()
        self.watch = SloWatch(
            objectives, replace(CONFIG, **config), self.metrics, clock, path / "slos.json"
        )

    async def __aenter__(self) -> "Life":
        self.watch.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.watch.close()


async def test_what_fires_goes_on_and_is_told_no_second_time(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Life(tmp_path, clock, LONG, repeat_after=180.0) as first:
        fail(first.watch, clock)
        (told,) = first.watch.look()
        assert (told.state, told.severity) == (AlertState.FIRING, Severity.CRITICAL)
    after = later(clock, 20.0)
    async with Life(tmp_path, after, LONG, repeat_after=180.0) as second:
        assert second.watch.firing() == [told]
        assert second.metrics.value(ALERTS_FIRING, LABELS) == 1.0
        assert second.watch.look() == []
        after.advance(150.0)  # 170 s since it was told
        assert second.watch.look() == []
        after.advance(11.0)
        (again,) = second.watch.look()
        assert (again.began, again.state) == (told.began, AlertState.FIRING)


async def test_what_ended_meanwhile_is_told_to_be_over_after_a_calm_time(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Life(tmp_path, clock, UP) as first:
        fail(first.watch, clock)
        (told,) = first.watch.look()
    after = later(clock, 4000.0)  # all windows are empty by then
    async with Life(tmp_path, after, UP) as second:
        assert second.watch.firing() == [told]
        after.advance(30.0)
        fine = Ended(model="m", tenant="t", priority="standard", verdict=Verdict.GOOD)
        second.watch.book.note(fine, after.monotonic())
        assert second.watch.look() == []
        after.advance(61.0)
        (over,) = second.watch.look()
        assert (over.state, over.began, over.ended) == (
            AlertState.RESOLVED,
            told.began,
            after.wall(),
        )
        assert second.metrics.value(ALERTS_FIRING, LABELS) == 0.0
    async with Life(tmp_path, later(after, 1.0), UP) as third:
        assert third.watch.firing() == []
        assert third.watch.past() == [over]


async def test_one_whose_objective_was_removed_is_over_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Life(tmp_path, clock, UP) as first:
        fail(first.watch, clock)
        first.watch.look()
    async with Life(tmp_path, later(clock, 1.0), period=0.01) as second:
        await until(lambda: bool(second.watch.past()), "it is over")
    async with Life(tmp_path, later(clock, 2.0)) as third:
        assert third.watch.firing() == []
        assert third.watch.look() == []


async def test_what_no_webhook_took_is_sent_by_the_next_gateway(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Life(tmp_path, clock, UP, webhooks=(NOWHERE,)) as first:
        fail(first.watch, clock)
        (told,) = first.watch.look()
    async with Life(tmp_path, later(clock, 1.0), UP, webhooks=(NOWHERE,)) as second:
        (sender,) = second.watch._senders
        assert sender.untold == (told,)


async def test_a_dead_webhook_makes_no_other_hear_twice(tmp_path: Path) -> None:
    """Each has messages of its own; its address, which may hold a secret, is not written."""
    clock, heard = FakeClock(), []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            (size,) = (
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            heard.append(json.loads(await reader.readexactly(size))["alerts"][0]["status"])
            await send_json(writer, 200, {})

    hook = Listener(connected)
    await hook.start()
    try:
        alive = Webhook(url=f"http://127.0.0.1:{hook.port}/secret")
        hooks = {"webhooks": (NOWHERE, alive)}
        async with Life(tmp_path, clock, UP, **hooks) as first:
            fail(first.watch, clock)
            (told,) = first.watch.look()
            await until(lambda: heard == ["firing"], "the one that lives is told")
        async with Life(tmp_path, later(clock, 1.0), UP, **hooks) as second:
            dead, well = second.watch._senders
            assert (dead.untold, well.untold) == ((told,), ())
        assert heard == ["firing"]
        written = (tmp_path / "slos.json").read_text()
        assert "secret" not in written
        assert "127.0.0.1" not in written
    finally:
        await hook.kill()


async def test_what_all_tries_could_not_tell_is_left_to_the_next_gateway(tmp_path: Path) -> None:
    clock, hooks = FakeClock(), (replace(NOWHERE, attempts=1),)
    async with Life(tmp_path, clock, UP, webhooks=hooks) as first:
        fail(first.watch, clock)
        (told,) = first.watch.look()
        await until(
            lambda: first.metrics.value(ALERT_MESSAGES, ("failed",)) == 1.0, "it was given up"
        )
        (sender,) = first.watch._senders
        newer = replace(told, state=AlertState.RESOLVED, ended=clock.wall())
        assert sender.untold == (told,)
        sender.put([newer])
        assert sender.untold == (newer,)
        await until(
            lambda: first.metrics.value(ALERT_MESSAGES, ("failed",)) == 2.0, "it was given up too"
        )
    async with Life(tmp_path, later(clock, 1.0), UP, webhooks=hooks) as second:
        (sender,) = second.watch._senders
        assert sender.untold == (newer,)


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept["firing"][0].update(told_ago=-1.0),
        lambda kept: kept["firing"][0].update(told_ago=1e300),
        lambda kept: kept["firing"][0]["alert"].update(state="resolved"),
        lambda kept: kept["firing"][0]["alert"].update(began=1e18),
        lambda kept: kept["firing"][0]["alert"].update(severity="grave"),
        lambda kept: kept.update(untold=[{}]),
        lambda kept: kept.update(untold={"x": [{}]}),
        lambda kept: kept.update(past="none"),
    ],
)
async def test_broken_alerts_are_left_aside_and_cost_no_budget(
    tmp_path: Path, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with Life(tmp_path, clock, UP) as first:
        fail(first.watch, clock)
        first.watch.look()
    file = tmp_path / "slos.json"
    content = json.loads(file.read_bytes())
    change(content["alerts"])
    file.write_bytes(json.dumps(content).encode())
    async with Life(tmp_path, later(clock, 1.0), UP) as second:
        assert second.watch.firing() == []
        assert [report.bad for report in second.watch.reports()] == [20]
    assert "begin anew" in caplog.text


async def test_a_file_of_before_has_no_alerts(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Life(tmp_path, clock, UP) as first:
        fail(first.watch, clock)
    file = tmp_path / "slos.json"
    content = json.loads(file.read_bytes())
    del content["alerts"]
    file.write_bytes(json.dumps(content).encode())
    async with Life(tmp_path, later(clock, 1.0), UP) as second:
        assert second.watch.firing() == []
        assert [report.bad for report in second.watch.reports()] == [20]
