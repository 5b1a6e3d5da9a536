"""What the window says of requests: rates, lengths, latencies, and that too little was seen."""

import pytest

from headrace.config.fleet.scaling import Objectives
from headrace.core.stats import ReplicaRole
from headrace.fleet.autoscaler.capacity import Capacity
from headrace.fleet.autoscaler.gather import Counts, QueueLook, ReplicaLook, Sums, gather
from headrace.fleet.autoscaler.latencies import MAX_SAMPLES
from headrace.fleet.autoscaler.traffic import Ended, Traffic

SLO = Objectives(ttft=1.0, tpot=0.1)


def ended(arrival: float, **more: object) -> Ended:
    usual: dict[str, object] = {
        "prompt_tokens": 100, "output_tokens": 11, "asked_prompt": 100, "asked_output": 44,
        "ttft": 0.5, "latency": 1.5,
    }  # fmt: skip
    return Ended(arrival=arrival, **{**usual, **more})  # type: ignore[arg-type]


def test_rates_come_with_what_bounds_really_come_to() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for second in range(60):
        traffic.arrived(float(second), 100, 44)
        traffic.ended(second + 0.9, ended(float(second)))
    found = traffic.summary(60.0, SLO)
    assert found.arrivals_per_second == pytest.approx(1.0)
    assert found.incoming_tokens_per_second == pytest.approx(20 + 11)
    assert found.processed_tokens_per_second == pytest.approx(31, rel=0.05)
    assert (found.input_tokens, found.output_tokens) == pytest.approx((100, 11))
    assert (found.ttft_p95, found.tpot_p95) == pytest.approx((0.5, 0.1))
    assert found.itl_p95 == pytest.approx(0.1)
    assert found.slo_attainment == 1.0
    assert found.idle_seconds == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("requests", "took"),
    [
        # Ten at once: 31 tokens each, within 0.65 s.
        ({30: 10}, 310 / 0.65),
        # As many a second for ten seconds: 3100 within 9.65 s are less than the first second's.
        (dict.fromkeys(range(21, 31), 10), 310 / 0.65),
        # It grows over two seconds: what is left of the first counts with the second.
        ({29: 40, 30: 10}, 50 * 31 / 1.65),
        ({}, 0.0),
    ],
)
def test_a_burst_takes_what_no_stretch_of_time_may_exceed(
    requests: dict[int, int], took: float
) -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    traffic.ended(0.0, ended(0.0))  # what bounds come to
    for second, count in requests.items():
        for _ in range(count):
            traffic.arrived(float(second), 100, 44)
    assert traffic.summary(30.0, SLO).burst_tokens_per_second == pytest.approx(took)


def test_how_many_came_in_the_stretch_that_asks_for_most() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    traffic.ended(0.0, ended(0.0))
    traffic.arrived(1.0, 100, 44)
    for _ in range(10):
        traffic.arrived(30.0, 100, 44)
    assert traffic.summary(30.0, SLO).burst_requests == 10


def test_a_window_that_has_just_begun_tells_of_no_burst_before_a_request() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    traffic.ended(0.0, ended(0.0))
    assert traffic.summary(1.0, SLO).burst_tokens_per_second is None
    traffic.arrived(1.0, 100, 44)
    assert traffic.summary(1.0, SLO).burst_tokens_per_second == pytest.approx(31 / 0.65)


def test_without_an_objective_nobody_knows_what_a_burst_takes() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    traffic.arrived(30.0, 100, 44)
    assert traffic.summary(30.0, SLO).burst_tokens_per_second is None  # nor before an answer ended
    traffic.ended(30.0, ended(29.0))
    assert traffic.summary(30.0, Objectives(tpot=0.1)).burst_tokens_per_second is None
    assert traffic.summary(30.0, SLO).burst_tokens_per_second is not None


def test_cached_prompts_are_no_work() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=1.0)
    for second in range(60):
        traffic.arrived(float(second), 100, 0)
        traffic.ended(second + 0.5, ended(float(second), prompt_tokens=10, asked_output=0))
    assert traffic.summary(60.0, SLO).incoming_tokens_per_second == pytest.approx(10.0)


def test_what_others_answer_does_not_come_in() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for second in range(60):
        for place in range(4):
            traffic.arrived(float(second), 100, 44)
            if place == 0:
                traffic.ended(second + 0.9, ended(float(second)))
            else:
                traffic.ended_elsewhere(second + 0.9, 100, 44)
    found = traffic.summary(60.0, SLO)
    assert found.arrivals_per_second == pytest.approx(1.0)
    assert found.incoming_tokens_per_second == pytest.approx(20 + 11)
    assert (found.input_tokens, found.output_tokens) == pytest.approx((100, 11))
    for second in range(60, 121):  # the others are gone
        traffic.arrived(float(second), 100, 44)
        traffic.ended(second + 0.9, ended(float(second)))
    assert traffic.summary(121.0, SLO).arrivals_per_second == pytest.approx(1.0, rel=0.05)


def test_bounds_say_nothing_until_a_request_has_ended() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for second in range(60):
        traffic.arrived(float(second), 100, 4096)
    found = traffic.summary(60.0, SLO)
    assert found.incoming_tokens_per_second is None
    assert found.arrivals_per_second == pytest.approx(1.0)


def test_a_gateway_that_has_just_begun_knows_no_rate() -> None:
    traffic = Traffic(100.0, 60.0, prompt_weight=0.2)
    assert traffic.summary(105.0, SLO).arrivals_per_second is None
    assert traffic.summary(105.0, SLO).idle_seconds == 5.0
    later = traffic.summary(160.0, SLO)
    assert later.arrivals_per_second == 0.0
    assert later.incoming_tokens_per_second == 0.0
    assert later.ttft_p95 is None
    assert later.slo_attainment is None


def test_the_window_moves_on() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for second in range(10):
        traffic.arrived(float(second), 100, 44)
        traffic.ended(second + 0.5, ended(float(second)))
    found = traffic.summary(200.0, SLO)
    assert (found.arrivals_per_second, found.processed_tokens_per_second) == (0.0, 0.0)
    assert found.ttft_p95 is None
    assert found.idle_seconds == pytest.approx(190.5)


def test_a_long_answer_counts_where_it_was_made() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.0)
    for second in range(100):
        traffic.arrived(float(second), 0, 0)
    long = ended(0.0, output_tokens=1000, ttft=0.0, latency=100.0)
    traffic.ended(100.0, long)
    assert traffic.summary(100.0, SLO).processed_tokens_per_second == pytest.approx(10.0, rel=0.1)


def test_samples_of_warm_ups_do_not_count() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for _ in range(20):
        traffic.ended(1.0, ended(0.0, ttft=0.2, latency=1.0))
        traffic.ended(1.0, ended(0.0, ttft=9.0, is_sample=False))
    found = traffic.summary(60.0, SLO)
    assert found.ttft_p95 == pytest.approx(0.2)
    assert found.slo_attainment == 1.0


def test_attainment_judges_what_was_told() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for number in range(8):
        traffic.ended(1.0, ended(0.0, ttft=0.5 if number < 6 else 2.0))
        traffic.ended(1.0, ended(0.0, ttft=None, output_tokens=1))
    assert traffic.summary(60.0, SLO).slo_attainment == pytest.approx(6 / 8)
    assert traffic.summary(60.0, Objectives()).slo_attainment is None


def test_what_is_kept_is_bounded() -> None:
    traffic = Traffic(0.0, 60.0, prompt_weight=0.2)
    for number in range(3 * MAX_SAMPLES):
        traffic.arrived(number * 0.01, 1, 1)
        traffic.ended(number * 0.01, ended(0.0))
    assert len(traffic._latencies) == len(traffic._latencies.ttft) == MAX_SAMPLES
    assert len(traffic._cells) <= 62


def test_capacity_is_learnt_when_replicas_are_full_and_stay() -> None:
    capacity = Capacity()

    def look(now: float, processed: float, ready: int, use: float, queued: bool = False) -> None:
        capacity.note(
            now, processed=processed, num_ready=ready, use=use, is_queued=queued, window=60.0
        )

    for second in range(0, 100, 2):
        look(float(second), 50.0, 2, 0.4)
    assert capacity.tokens_per_second is None
    for second in range(100, 120, 2):
        look(float(second), 200.0, 2, 0.95)
    assert capacity.tokens_per_second == pytest.approx(100.0)
    look(120.0, 900.0, 3, 1.0)  # the window still holds what two did
    assert capacity.tokens_per_second == pytest.approx(100.0)
    for second in range(190, 300, 2):
        look(float(second), 450.0, 3, 0.2)  # it can do more than was thought
    assert 140.0 < capacity.tokens_per_second <= 150.0
    for second in range(300, 400, 2):
        look(float(second), 0.0, 3, 0.0)
    assert capacity.tokens_per_second > 140.0


def looks(capacity: Capacity, seconds: range, **seen: float | None) -> float:
    """Looks at two replicas that are never full; what is known then."""
    for second in seconds:
        capacity.note(
            float(second), num_ready=2, use=0.1, is_queued=False, window=60.0,
            processed=seen["processed"], busy=seen["busy"], slowness=seen.get("slowness"),
        )  # fmt: skip
    assert capacity.tokens_per_second is not None
    return capacity.tokens_per_second


def test_capacity_is_learnt_from_the_time_in_which_replicas_work() -> None:
    capacity = Capacity()
    assert looks(capacity, range(0, 100, 2), processed=100.0, busy=0.5) == pytest.approx(100.0)
    # Idle replicas tell nothing, whatever they did.
    assert looks(capacity, range(100, 200, 2), processed=1.0, busy=0.2) == pytest.approx(100.0)
    # Larger batches do more.
    assert looks(capacity, range(200, 300, 2), processed=240.0, busy=0.8) == pytest.approx(
        150.0, rel=0.01
    )


def test_capacity_grows_while_latencies_are_good_and_goes_back_when_they_are_not() -> None:
    capacity = Capacity(100.0)
    far = looks(capacity, range(0, 1000, 2), processed=100.0, busy=0.5, slowness=0.2)
    assert 110.0 < far < 125.0
    assert looks(capacity, range(1000, 9000, 2), processed=100.0, busy=0.5, slowness=0.2) <= 200.0
    high = capacity.tokens_per_second
    assert looks(capacity, range(9000, 9100, 2), processed=100.0, busy=0.5, slowness=0.8) == high
    assert looks(capacity, range(9100, 9200, 2), processed=100.0, busy=0.5, slowness=1.2) < high
    # Never below what they do.
    assert looks(capacity, range(9200, 19200, 2), processed=100.0, busy=0.5, slowness=1.2) == 50.0


def test_the_pace_of_looks_does_not_matter() -> None:
    slow, fast = Capacity(100.0), Capacity(100.0)
    seen = {"processed": 100.0, "busy": 0.5, "slowness": 0.2}
    assert looks(slow, range(0, 1001, 10), **seen) == pytest.approx(
        looks(fast, range(0, 1001, 1), **seen), rel=0.02
    )


FULL = ReplicaLook(num_running=8, num_waiting=1, slots=8, kv_usage=0.5, utilisation=0.9)


def test_gathering() -> None:
    sums = Sums(0.0, 60.0, 0.2)
    found = gather(
        60.0, [FULL, FULL._replace(temperature=80.0, is_throttled=False)], QueueLook(3, 1.5), sums,
        Counts(num_pending=1, num_warm=2), SLO,
    )  # fmt: skip
    assert (found.num_ready, found.num_pending, found.num_warm, found.num_reporting) == (2, 1, 2, 2)
    assert (found.queue_size, found.queue_wait) == (5, 1.5)
    assert (found.num_running, found.slots, found.kv_usage) == (16, 16, 0.5)
    assert (found.temperature, found.is_throttled) == (80.0, False)
    assert found.idle_seconds == 0.0


def test_one_that_does_not_tell_makes_the_sum_unknown() -> None:
    silent = ReplicaLook(is_fresh=False)
    found = gather(60.0, [FULL, silent], QueueLook(), Sums(0.0, 60.0, 0.2), Counts(), SLO)
    assert (found.num_ready, found.num_reporting) == (2, 1)
    assert (found.num_running, found.slots) == (None, None)
    assert found.queue_size == 1
    assert found.kv_usage == 0.5


def test_no_replica_runs_nothing_and_that_is_not_told_as_0() -> None:
    found = gather(60.0, [], QueueLook(), Sums(0.0, 60.0, 0.2), Counts(), SLO)
    assert (found.num_running, found.slots, found.kv_usage) == (None, None, None)
    assert found.idle_seconds == 60.0


@pytest.mark.parametrize(
    ("role", "rate", "has_ttft", "has_tpot"),
    [(ReplicaRole.PREFILL, 20.0, True, False), (ReplicaRole.DECODE, 11.0, False, True)],
)
def test_each_role_has_its_own_signals(
    role: ReplicaRole, rate: float, has_ttft: bool, has_tpot: bool
) -> None:
    sums = Sums(0.0, 60.0, 0.2, role)
    for second in range(60):
        sums.traffic.arrived(float(second), 100, 44)
        sums.traffic.ended(second + 0.9, ended(float(second)))
    found = gather(60.0, [FULL], QueueLook(), sums, Counts(), SLO)
    assert found.incoming_tokens_per_second == pytest.approx(rate)
    assert (found.ttft_p95 is not None, found.tpot_p95 is not None) == (has_ttft, has_tpot)
