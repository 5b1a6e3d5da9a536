"""What is off stays off over a restart, on the same terms; a broken file stops nothing."""

from pathlib import Path

import msgspec
import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.models import ModelsConfig
from headrace.fleet.gateway.models.canary import Canaries, Outcome
from headrace.fleet.gateway.models.canary_file import MAX_BYTES, CanaryFile
from headrace.fleet.gateway.models.values import Trial


def config(**rollback: object) -> ModelsConfig:
    arms = [{"version": "v1"}, {"version": "v2", "canary": True}]
    rule = {"name": "m", "split": arms, "rollback": {"min_samples": 1, "breaches": 1, **rollback}}
    return msgspec.convert({"rules": [rule]}, ModelsConfig)


def failed(rules: ModelsConfig, now: float) -> Canaries:
    canaries = Canaries(rules)
    for arm, is_error, at in (("v1", False, now - 10.0), ("v2", True, now)):
        canaries.note(Trial(rule="m", arm=arm), Outcome(is_error=is_error), at)
    assert canaries.off(now)
    return canaries


async def restarted(path: Path, clock: FakeClock, rules: ModelsConfig) -> Canaries:
    canaries = Canaries(rules)
    CanaryFile(path, canaries, clock).load()
    return canaries


async def test_it_stays_off_on_the_same_terms_only(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "new" / "canaries.json"
    before = failed(config(), clock.monotonic())
    await CanaryFile(path, before, clock).save()
    after = await restarted(path, clock, config())
    assert after.off(clock.monotonic()) == before.off(clock.monotonic())
    changed = await restarted(path, clock, config(error_margin=0.5))
    assert not changed.off(clock.monotonic())


async def test_its_pause_goes_on(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "canaries.json"
    rules = config(retry_after=100.0)
    before = failed(rules, clock.monotonic())
    clock.advance(40.0)
    await CanaryFile(path, before, clock).save()
    clock.advance(50.0)
    after = await restarted(path, clock, rules)
    assert after.off(clock.monotonic())
    clock.advance(10.0)
    assert not after.off(clock.monotonic())


async def test_one_that_is_tried_again_is_forgotten(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "canaries.json"
    before = failed(config(), clock.monotonic())
    file = CanaryFile(path, before, clock)
    await file.save()
    before.reset("m")
    await file.save()
    assert not (await restarted(path, clock, config())).off(clock.monotonic())


async def test_nothing_is_written_where_nothing_has_changed(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "canaries.json"
    await CanaryFile(path, Canaries(config()), clock).save()
    assert not path.exists()
    file = CanaryFile(path, failed(config(), clock.monotonic()), clock)
    await file.save()
    path.unlink()
    await file.save()
    assert not path.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b'{"version":2,"canaries":[]}',
        b'{"version":1,"canaries":[{"off":{"rule":"m","terms":"","reason":""},"at":1}]}',
        b'{"version":1,"canaries":[{"off":{"rule":"m","terms":"","reason":"x"},"at":-1}]}',
        b" " * (MAX_BYTES + 1),
        b"[" * 100_000,
    ],
)
async def test_a_broken_file_is_left_aside(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "canaries.json"
    path.write_bytes(data)
    assert not (await restarted(path, FakeClock(), config())).off(0.0)


async def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    clock = FakeClock()
    canaries = failed(config(), clock.monotonic())
    file = CanaryFile(tmp_path / "file" / "x.json", canaries, clock)
    await file.save()


async def test_what_could_not_be_written_is_written_later_and_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    clock = FakeClock()
    file = CanaryFile(in_the_way / "x.json", failed(config(), clock.monotonic()), clock)
    for _ in range(3):
        await file.save()
    assert len(caplog.messages) == 1
    in_the_way.unlink()
    await file.save()
    assert (await restarted(in_the_way / "x.json", clock, config())).off(clock.monotonic())
