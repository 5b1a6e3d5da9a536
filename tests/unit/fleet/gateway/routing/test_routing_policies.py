"""What each policy promises, one example at a time."""

from collections import Counter
from random import Random

import msgspec
import pytest

from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.routing.choose import POLICIES, choose
from headrace.fleet.gateway.routing.values import Candidate, Decision, Query


def query(**fields: object) -> Query:
    return Query(**({"prompt_tokens": 1000, "output_tokens": 100, "draw": 0.51} | fields))


def pick(policy: str, asked: Query, *candidates: Candidate, **settings: object) -> Decision:
    return choose(RoutingConfig(policy=RoutingPolicy(policy), **settings), asked, candidates)


def three(**fields: tuple) -> list[Candidate]:
    """Candidates a, b, c; each field has one value for each."""
    return [
        Candidate(id=name, **{field: values[place] for field, values in fields.items()})
        for place, name in enumerate("abc")
    ]


def test_every_policy_has_a_module() -> None:
    assert set(POLICIES) == set(RoutingPolicy)


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_no_candidate_is_an_error_of_the_caller(policy: RoutingPolicy) -> None:
    with pytest.raises(ValueError, match="no candidate"):
        choose(RoutingConfig(policy=policy), query(), [])


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_a_decision_says_how_it_came_about(policy: RoutingPolicy) -> None:
    decision = choose(RoutingConfig(policy=policy), query(), three())
    assert decision.policy == policy
    assert "of 3 candidates" in decision.reason
    assert "0 requests" in decision.reason
    assert decision.reason.isascii()
    assert "\n" not in decision.reason


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_a_saturated_replica_gets_nothing_while_another_has_room(policy: RoutingPolicy) -> None:
    candidates = three(
        num_requests=(256, 255, 300), cached_tokens=(1000, 0, 1000), ttft=(0.1, 9.0, 0.1)
    )
    for step in range(20):
        asked = query(session=f"s{step}", number=step, draw=step / 20)
        assert choose(RoutingConfig(policy=policy), asked, candidates).replica_id == "b"


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_saturated_replicas_are_used_where_there_are_no_others(policy: RoutingPolicy) -> None:
    candidates = three(num_requests=(256, 256, 256))
    assert choose(RoutingConfig(policy=policy), query(), candidates).replica_id in "abc"


def test_round_robin_goes_round() -> None:
    taken = [pick("round_robin", query(number=n), *three()).replica_id for n in range(7)]
    assert "".join(taken) == "abcabca"


def test_round_robin_spreads_weights_evenly() -> None:
    candidates = three(weight=(1.0, 2.0, 5.0))
    taken = [pick("round_robin", query(number=n), *candidates).replica_id for n in range(800)]
    # In any stretch of sixteen each has its part, give or take one.
    for name, part in (("a", 2), ("b", 4), ("c", 10)):
        assert all(abs(taken[at : at + 16].count(name) - part) <= 1 for at in range(784))


def test_least_requests() -> None:
    assert pick("least_requests", query(), *three(num_requests=(3, 1, 2))).replica_id == "b"
    # With this one, 4 of weight 4 are fewer than 2 of weight 1.
    candidates = three(num_requests=(1, 1, 3), weight=(1.0, 1.0, 4.0))
    assert pick("least_requests", query(), *candidates).replica_id == "c"


def test_least_outstanding_tokens_counts_what_requests_cost() -> None:
    candidates = three(
        num_requests=(1, 5, 5), prefill_tokens=(100_000, 400, 0), decode_tokens=(0, 0, 300)
    )
    assert pick("least_outstanding_tokens", query(), *candidates).replica_id == "b"
    assert pick("least_outstanding_tokens", query(), *candidates, decode_cost=1.0).replica_id == "c"


def test_power_of_two_never_takes_the_busiest() -> None:
    candidates = three(prefill_tokens=(500, 100, 300))
    draw = Random(0).random
    taken = Counter(
        pick("power_of_two", query(draw=draw()), *candidates).replica_id for _ in range(500)
    )
    assert taken["a"] == 0
    # Two of three pairs hold b.
    assert 290 < taken["b"] < 380


def test_latency_takes_the_quickest_for_this_output() -> None:
    candidates = three(ttft=(0.1, 0.5, 9.0), tpot=(0.05, 0.01, 9.0))
    assert pick("latency", query(output_tokens=1), *candidates).replica_id == "a"
    assert pick("latency", query(output_tokens=500), *candidates).replica_id == "b"


def test_latency_times_load() -> None:
    candidates = three(ttft=(0.1, 0.5, 0.5), num_requests=(9, 1, 0))
    assert pick("latency", query(), *candidates).replica_id == "c"


def test_latency_finds_out_about_the_unknown() -> None:
    candidates = three(ttft=(0.1, 0.2, None), tpot=(0.01, 0.01, None), num_requests=(1, 0, 0))
    assert pick("latency", query(), *candidates).replica_id == "c"


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -1.0, 0.0])
def test_latency_survives_impossible_averages(broken: float) -> None:
    candidates = three(ttft=(broken, 0.2, 0.3), tpot=(0.01, broken, 0.01))
    assert pick("latency", query(), *candidates).replica_id in "abc"


def test_latency_looks_again_at_one_that_was_slow() -> None:
    candidates = three(ttft=(0.1, 0.1, 30.0))
    draw = Random(0).random
    decisions = [pick("latency", query(draw=draw()), *candidates) for _ in range(3000)]
    taken = Counter(decision.replica_id for decision in decisions)
    assert 3 <= taken["c"] <= 40
    assert all("by load for once" in d.reason for d in decisions if d.replica_id == "c")


def test_a_session_stays() -> None:
    candidates = three()
    for name in ("x", "y", "z"):
        taken = {
            pick("session_affinity", query(session=name, draw=d / 10), *candidates).replica_id
            for d in range(10)
        }
        assert len(taken) == 1


def test_only_sessions_of_a_lost_replica_move() -> None:
    candidates = three()
    for step in range(300):
        asked = query(session=f"s{step}")
        before = pick("session_affinity", asked, *candidates).replica_id
        without = [one for one in candidates if one.id != "b"]
        after = pick("session_affinity", asked, *without).replica_id
        assert after == before or before == "b"


def test_a_session_leaves_an_overloaded_replica_and_says_so() -> None:
    asked = query(session="x")
    home = pick("session_affinity", asked, *three()).replica_id
    busy = [Candidate(id=name, num_requests=10 if name == home else 2) for name in "abc"]
    decision = pick("session_affinity", asked, *busy)
    assert decision.replica_id != home
    assert f"session's home {home} is full" in decision.reason


def test_without_a_session_load_decides() -> None:
    assert pick("session_affinity", query(), *three(num_requests=(3, 1, 2))).replica_id == "b"


def test_prefix_aware_weighs_reuse_against_queues() -> None:
    candidates = three(cached_tokens=(900, 0, 0), prefill_tokens=(800, 0, 500))
    assert pick("prefix_aware", query(), *candidates).replica_id == "a"
    candidates = three(cached_tokens=(900, 0, 0), prefill_tokens=(1000, 0, 500))
    assert pick("prefix_aware", query(), *candidates).replica_id == "b"


class TestSticky:
    def test_stays_where_it_is_warm(self) -> None:
        candidates = three(
            cached_tokens=(0, 900, 0), prefill_tokens=(0, 850, 0), num_requests=(0, 3, 0)
        )
        decision = pick("sticky", query(), *candidates)
        assert decision.replica_id == "b"
        assert decision.cached_tokens == 900
        assert decision.reason.startswith("warm, cached 0.90, first token 0.95 s, 3 requests")

    def test_leaves_for_a_sooner_first_token_while_a_replica_is_free(self) -> None:
        candidates = three(cached_tokens=(0, 900, 0), prefill_tokens=(2000, 950, 0))
        decision = pick("sticky", query(), *candidates)
        assert decision.replica_id == "c"
        assert decision.reason.startswith("left, warm ones are 0.05 s later, cached 0.00")

    def test_stays_longer_when_prompts_wait_everywhere(self) -> None:
        # Staying saves 900 tokens; they count fivefold where every queue is as long as the prompt.
        waits = {"cached_tokens": (0, 900, 0), "prefill_tokens": (1000, 2900, 1500)}
        assert pick("sticky", query(), *three(**waits)).replica_id == "b"
        assert pick("sticky", query(), *three(**waits), reuse_weight=0.0).replica_id == "a"
        assert pick("prefix_aware", query(), *three(**waits)).replica_id == "a"
        halved = {"cached_tokens": (0, 900, 0), "prefill_tokens": (25, 2900, 750)}
        assert pick("sticky", query(), *three(**halved), max_ttft_penalty=9.0).replica_id == "a"

    @pytest.mark.parametrize("count", [2, 3, 9, 10, 20, 50])
    def test_a_free_replica_is_taken_however_many_there_are(self, count: int) -> None:
        busy = [Candidate(id=str(n), prefill_tokens=4000) for n in range(count - 2)]
        warm = Candidate(id="warm", prefill_tokens=4000, cached_tokens=900)
        free = Candidate(id="free")
        decision = pick("sticky", query(), *busy, warm, free)
        assert decision.replica_id == "free"
        assert decision.reason.startswith("left, warm ones are 3.10 s later")
        waits = msgspec.structs.replace(free, prefill_tokens=3000)
        assert pick("sticky", query(), *busy, warm, waits).replica_id == "warm"

    def test_a_free_replica_counts_as_free_even_where_it_would_be_too_late(self) -> None:
        # Computing all of it on c would take 41 s; a is 1.5 s later than b, and computes 2,000 tokens less again.
        asked, cached = query(prompt_tokens=41_000), (40_000, 38_000, 0)
        for waiting, wanted in ((4100, "a"), (0, "b")):
            candidates = three(cached_tokens=cached, prefill_tokens=(6000, 2500, waiting))
            assert pick("sticky", asked, *candidates).replica_id == wanted

    def test_a_free_replica_that_has_no_room_counts_for_nothing(self) -> None:
        waits = {"cached_tokens": (0, 900, 0), "prefill_tokens": (1000, 2900, 0)}
        assert pick("sticky", query(), *three(**waits, num_requests=(2, 2, 30))).replica_id == "b"
        assert pick("sticky", query(), *three(**waits, num_requests=(2, 2, 256))).replica_id == "b"
        assert pick("sticky", query(), *three(**waits, num_requests=(2, 2, 2))).replica_id == "c"

    def test_leaves_in_any_case_when_the_first_token_would_be_too_late(self) -> None:
        candidates = three(cached_tokens=(0, 900, 0), prefill_tokens=(1000, 4500, 1000))
        decision = pick("sticky", query(), *candidates, max_ttft_penalty=2.5)
        assert decision.replica_id != "b"
        assert decision.reason.startswith("left, warm ones are 2.60 s later, cached 0.00")
        assert pick("sticky", query(), *candidates, max_ttft_penalty=2.7).replica_id == "b"

    def test_the_rate_may_be_set(self) -> None:
        candidates = three(cached_tokens=(0, 900, 0), prefill_tokens=(1000, 4500, 1000))
        fast = pick("sticky", query(), *candidates, prefill_tokens_per_second=2000.0)
        assert fast.replica_id == "b"

    def test_a_long_prompt_stays_longer(self) -> None:
        for length, wanted in ((9500, "b"), (950, "a")):
            saved = length - 50
            candidates = three(cached_tokens=(0, saved, 0), prefill_tokens=(0, 8000, 9000))
            asked = query(prompt_tokens=length)
            assert pick("sticky", asked, *candidates).replica_id == wanted

    def test_output_tokens_count_a_quarter_of_their_cost(self) -> None:
        # 400 output tokens, of 2 prompt tokens each, delay a first token by 200 prompt tokens.
        candidates = three(cached_tokens=(0, 250, 0), decode_tokens=(0, 400, 900))
        assert pick("sticky", query(), *candidates).replica_id == "b"
        assert pick("sticky", query(), *candidates, decode_cost=3.0).replica_id == "a"

    def test_a_shared_prefix_does_not_gather_all_streams(self) -> None:
        candidates = three(cached_tokens=(0, 900, 0), num_requests=(2, 20, 2))
        decision = pick("sticky", query(), *candidates)
        assert decision.replica_id in "ac"
        assert "too many streams" in decision.reason

    @pytest.mark.parametrize(
        ("others", "words"),
        [
            ({"prefill_tokens": (0, 950, 0)}, "left, warm ones are 0.05 s later"),
            ({"num_requests": (2, 20, 2)}, "left, warm ones have too many streams"),
            ({"num_requests": (2, 256, 2)}, "left, warm ones have too many streams"),
            (
                {"num_requests": (2, 20, 2), "prefill_tokens": (0, 950, 0)},
                "left, warm ones have too many streams",
            ),
            ({"decode_tokens": (0, 4000, 0)}, "left, warm ones have no less to do"),
            ({"weight": (1.0, 0.1, 1.0)}, "left, warm ones have no less to do"),
        ],
    )
    def test_why_it_left(self, others: dict[str, tuple], words: str) -> None:
        decision = pick("sticky", query(), *three(cached_tokens=(0, 900, 0), **others))
        assert decision.replica_id in "ac"
        assert decision.reason.startswith(words)

    def test_warm_is_relative_to_the_best(self) -> None:
        # 100 of 1000 tokens is little, but the best there is; half of it is warm, and less is not.
        for cached, word in ((60, "warm"), (40, "left, warm ones are 0.44 s later")):
            candidates = three(cached_tokens=(100, cached, 0), prefill_tokens=(500, 0, 100))
            decision = pick("sticky", query(), *candidates)
            assert decision.replica_id == "b"
            assert decision.reason.startswith(f"{word}, cached 0.0")

    def test_cold_ones_go_by_work(self) -> None:
        candidates = three(prefill_tokens=(10, 20, 0), decode_tokens=(0, 0, 100))
        decision = pick("sticky", query(), *candidates)
        assert decision.replica_id == "a"
        assert decision.reason.startswith("cold")
