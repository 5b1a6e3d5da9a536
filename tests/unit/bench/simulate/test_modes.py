"""Fleet mode stays within 10 % of detailed mode, which runs the real scheduler, ledger and gateway."""

import pytest

from headrace.bench.simulate.options import (
    LoadOptions,
    Mode,
    PlaceOptions,
    SimulateOptions,
)
from headrace.bench.simulate.profile import Profile, StepTime
from headrace.bench.simulate.report import Report
from headrace.bench.simulate.run import simulate
from headrace.config.fleet.routing import RoutingPolicy

PROFILE = Profile(
    model="m",
    step=StepTime(fixed=0.01, prefill_token=0.0005, decode_row=0.0015, attended_token=3e-7),
    request_seconds=0.004,
    max_num_seqs=16,
)


def both(load: LoadOptions, **options: object) -> tuple[Report, Report]:
    made = [
        simulate(SimulateOptions(mode=mode, load=load, **options), PROFILE)  # type: ignore[arg-type]
        for mode in (Mode.FLEET, Mode.DETAILED)
    ]
    return made[0], made[1]


def check(fleet: Report, detailed: Report) -> None:
    assert fleet.num_requests == detailed.num_requests > 100
    assert fleet.attainment == pytest.approx(detailed.attainment, abs=0.05)
    assert fleet.output_tokens_per_second == pytest.approx(
        detailed.output_tokens_per_second, rel=0.1
    )
    for name in ("ttft", "tpot", "e2e"):
        ours, theirs = getattr(fleet, name), getattr(detailed, name)
        assert ours.mean == pytest.approx(theirs.mean, rel=0.1), name
        assert ours.p50 == pytest.approx(theirs.p50, rel=0.1), name


def test_modes_agree_under_a_moderate_load() -> None:
    check(
        *both(LoadOptions(duration=120.0, rate=4.0, input_tokens=300, output_tokens=60), replicas=4)
    )


def test_modes_agree_where_requests_wait() -> None:
    fleet, detailed = both(
        LoadOptions(duration=60.0, rate=8.0, input_tokens=400, output_tokens=80),
        replicas=2,
        routing=RoutingPolicy.LEAST_OUTSTANDING_TOKENS,
    )
    assert detailed.attainment < 0.9
    check(fleet, detailed)


def test_modes_agree_where_prompts_share_their_beginning() -> None:
    load = LoadOptions(
        duration=100.0, rate=5.0, input_tokens=100, output_tokens=40, shared_tokens=1024
    )
    fleet, detailed = both(load, replicas=3)
    check(fleet, detailed)
    assert fleet.cached_share == pytest.approx(detailed.cached_share, abs=0.05)
    assert detailed.cached_share > 0.8


@pytest.mark.parametrize("mode", Mode)
def test_replicas_that_are_killed_cost_time_and_no_request(mode: Mode) -> None:
    load = LoadOptions(duration=120.0, rate=2.0, input_tokens=200, output_tokens=40)
    place = PlaceOptions(kill_every=30.0, boot_time=2.0, boot_failures=0.3)
    options = SimulateOptions(mode=mode, load=load, place=place, replicas=4, seed=3)
    report = simulate(options, PROFILE)
    assert report.num_kills >= 2
    assert report.num_boots >= report.num_kills
    assert report.errors == {}
    assert (
        report.output_tokens
        == simulate(
            SimulateOptions(mode=mode, load=load, replicas=4, seed=3), PROFILE
        ).output_tokens
    )


@pytest.mark.parametrize("mode", Mode)
def test_the_same_seed_is_the_same_report(mode: Mode) -> None:
    load = LoadOptions(duration=40.0, rate=4.0)
    options = SimulateOptions(mode=mode, load=load, replicas=2, seed=5)
    assert simulate(options, PROFILE) == simulate(options, PROFILE)
