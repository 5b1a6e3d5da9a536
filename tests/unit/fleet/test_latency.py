"""How fast a replica is, from what its first tokens show."""

from random import Random

import pytest

from headrace.fleet.latency import Latency


def computed(prompts: list[tuple[float, int]], rate: float) -> Latency:
    """Prompts (when sent, tokens) of a replica that computes one after another."""
    latency, free = Latency(), 0.0
    for sent, tokens in prompts:
        free = max(free, sent) + tokens / rate
        latency.note_prefill(sent, free, tokens)
    return latency


def test_nothing_is_known_at_first() -> None:
    latency = Latency()
    assert latency.prefill_rate is None
    assert latency.work_time is None


@pytest.mark.parametrize("spread", [0.1, 10.0, 1000.0])
def test_the_prefill_rate_is_that_of_computing_however_long_the_queue(spread: float) -> None:
    chance = Random(1)
    sent = sorted(chance.uniform(0, spread) for _ in range(200))
    prompts = [(at, chance.randrange(64, 4000)) for at in sent]
    assert computed(prompts, 2000.0).prefill_rate == pytest.approx(2000.0)


def test_prompts_of_one_step_share_its_time() -> None:
    latency = Latency()
    for step in range(100):
        for _ in range(4):
            latency.note_prefill(step, step + 0.5, 250)
    assert latency.prefill_rate == pytest.approx(2000.0, rel=0.1)


def test_cached_prompts_say_nothing_of_the_rate() -> None:
    latency = computed([(0.0, 1000)], 2000.0)
    latency.note_prefill(1.0, 1.02, 10)
    assert latency.prefill_rate == pytest.approx(2000.0)


@pytest.mark.parametrize("told", [[(0.0, 10), (0.0, 4000)], [(0.0, 4000), (0.0, 10)]])
def test_a_short_prompt_of_the_same_step_takes_nothing_of_its_time(
    told: list[tuple[float, int]],
) -> None:
    latency = Latency()
    for sent, tokens in told:
        latency.note_prefill(sent, 2.0, tokens)
    assert latency.prefill_rate == pytest.approx(2000.0)


def test_a_short_prompt_within_a_long_ones_time_takes_nothing_of_it() -> None:
    latency = Latency()
    latency.note_prefill(0.0, 1.9, 10)
    latency.note_prefill(0.0, 2.0, 4000)
    assert latency.prefill_rate == pytest.approx(2000.0)


def test_the_rate_follows_what_a_replica_has_become() -> None:
    slow = computed([(float(n), 1000) for n in range(100)], 2000.0)
    for n in range(100, 200):
        slow.note_prefill(n * 10.0, n * 10.0 + 2.0, 1000)
    assert slow.prefill_rate == pytest.approx(500.0, rel=0.05)


def test_a_clock_that_stands_still_is_no_rate() -> None:
    latency = Latency()
    latency.note_prefill(1.0, 1.0, 1000)
    assert latency.prefill_rate is None


def test_cached_prompts_do_not_make_a_replica_look_slow() -> None:
    latency = Latency()
    for _ in range(20):
        latency.note_first_token(1.0, 2000)
        latency.note_first_token(0.02, 4)
    assert latency.work_time == pytest.approx(1 / 2000, rel=0.05)
