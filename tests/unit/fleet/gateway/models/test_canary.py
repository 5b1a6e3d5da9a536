"""Rollback: when a canary is switched off, and when it is not."""

from random import Random

import msgspec
import pytest

from headrace.config.fleet.models import ModelsConfig, RollbackConfig
from headrace.fleet.gateway.models.canary import Canaries, Outcome, Sample, judge
from headrace.fleet.gateway.models.resolve import resolve
from headrace.fleet.gateway.models.values import Asked, Trial


def config(**rollback: object) -> ModelsConfig:
    arms = [{"version": "v1", "weight": 90}, {"version": "v2", "weight": 10, "canary": True}]
    return msgspec.convert(
        {"rules": [{"name": "m", "split": arms, "rollback": rollback}]}, ModelsConfig
    )


class Traffic:
    """Ten answers a second of each arm."""

    def __init__(self, rules: ModelsConfig) -> None:
        self.canaries = Canaries(rules)
        self.now = 0.0
        self.random = Random(1)
        self.switched: list[str] = []

    def run(
        self, seconds: float, *, errors: float = 0.0, canary: float = 0.2, base: float = 0.2
    ) -> None:
        """`errors` of the canary, the base has 1 %; seconds to the first token vary by a factor of 2."""
        for _ in range(int(seconds * 10)):
            self.now += 0.1
            for arm, rate, time in (("v1", 0.01, base), ("v2", errors, canary)):
                failed = self.random.random() < rate
                first = None if failed else time * self.random.uniform(0.7, 1.4)
                reason = self.canaries.note(
                    Trial(rule="m", arm=arm), Outcome(is_error=failed, seconds=first), self.now
                )
                if reason:
                    self.switched.append(reason)

    @property
    def off(self) -> str:
        return self.canaries.off(self.now).get("m", "")


def test_a_good_canary_stays() -> None:
    traffic = Traffic(config())
    traffic.run(600, errors=0.01)
    assert traffic.off == ""


def test_errors_switch_it_off_and_the_reason_stays() -> None:
    traffic = Traffic(config())
    traffic.run(30, errors=0.01)
    traffic.run(60, errors=0.3)
    assert traffic.off.startswith("errors ")
    assert len(traffic.switched) == 1
    reason = traffic.off
    traffic.run(600)
    assert traffic.off == reason


def test_a_slow_one_is_switched_off() -> None:
    traffic = Traffic(config())
    traffic.run(60, canary=0.5)
    assert traffic.off.startswith("first token 0.5")


def test_a_little_slower_is_not() -> None:
    traffic = Traffic(config())
    traffic.run(300, canary=0.25)
    assert traffic.off == ""


def test_both_bad_is_nobodys_fault() -> None:
    traffic = Traffic(config())
    traffic.run(300, canary=5.0, base=5.0)
    assert traffic.off == ""


def test_one_bad_moment_is_forgiven() -> None:
    traffic = Traffic(config(window=10.0, period=5.0, breaches=4))
    for _ in range(10):
        traffic.run(5, errors=0.5)
        traffic.run(25)
    assert traffic.off == ""


def test_few_answers_say_nothing() -> None:
    traffic = Traffic(config(min_samples=1000))
    traffic.run(99, errors=1.0)
    assert traffic.off == ""


def test_it_is_tried_again_where_that_is_wanted() -> None:
    traffic = Traffic(config(retry_after=120.0))
    traffic.run(60, errors=0.5)
    assert traffic.off
    traffic.run(121)
    assert traffic.off == ""
    traffic.run(60, errors=0.5)
    assert traffic.off
    assert len(traffic.switched) == 2


def test_an_operator_may_reset_it() -> None:
    traffic = Traffic(config())
    traffic.run(60, errors=0.5)
    assert traffic.canaries.reset("m")
    assert not traffic.canaries.reset("other")
    assert traffic.off == ""


def test_a_reload_keeps_a_trial_unless_it_changed() -> None:
    traffic = Traffic(config())
    traffic.run(60, errors=0.5)
    traffic.canaries.configure(config())
    assert traffic.off
    traffic.canaries.configure(config(min_samples=31))
    assert traffic.off == ""
    traffic.canaries.configure(ModelsConfig())
    assert traffic.canaries.note(Trial(rule="m", arm="v2"), Outcome(is_error=True), 0.0) == ""


def test_traffic_goes_back_to_the_others() -> None:
    rules = config()
    traffic = Traffic(rules)

    def versions() -> set[str]:
        off = traffic.canaries.off(traffic.now)
        asked = (Asked(model="m", key=f"k{n}") for n in range(200))
        return {resolve(rules, off, one).targets[0].version for one in asked}

    assert versions() == {"v1", "v2"}
    traffic.run(60, errors=0.5)
    assert versions() == {"v1"}


def test_medians_are_near_the_truth() -> None:
    chance = Random(2)
    for typical in (0.002, 0.05, 1.0, 30.0):
        sample = Sample()
        times = [typical * chance.uniform(0.5, 2.0) for _ in range(501)]
        for time in times:
            sample.note(Outcome(is_error=False, seconds=time))
        assert sample.first.median == pytest.approx(sorted(times)[250], rel=0.2)
        assert sample.first.mean == pytest.approx(sum(times) / 501)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_impossible_times_are_not_counted(seconds: float) -> None:
    sample = Sample()
    sample.note(Outcome(is_error=False, seconds=seconds))
    assert (sample.total, sample.first.count) == (1, 0)
    assert (sample.first.median, sample.first.mean) == (0.0, 0.0)


def test_nothing_is_said_of_nothing() -> None:
    assert judge(RollbackConfig(), Sample(), Sample()) is None


def sample(*outcomes: Outcome) -> Sample:
    found = Sample()
    for outcome in outcomes:
        for _ in range(40):
            found.note(outcome)
    return found


def test_streams_and_whole_answers_are_compared_with_their_like() -> None:
    """A client that takes its answers at once and is divided to one side says nothing of first tokens."""
    quick = Outcome(is_error=False, seconds=0.1)
    long = Outcome(is_error=False, seconds=8.0, is_whole=True)
    longer = Outcome(is_error=False, seconds=20.0, is_whole=True)
    assert judge(RollbackConfig(), sample(quick, long), sample(quick)) == ""
    assert judge(RollbackConfig(), sample(quick, longer), sample(quick, long)) == (
        "answer 20.000 s against 8.000 s"
    )
