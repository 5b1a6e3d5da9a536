"""Every policy, over whatever candidates: a choice among them, by chance where equal, and never a death spiral."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.routing.values import Candidate, Query

POLICY = st.sampled_from(list(RoutingPolicy))
COUNT = st.integers(0, 10**6)
SECONDS = st.none() | st.floats(allow_nan=True, allow_infinity=True)

CANDIDATE = st.builds(
    Candidate,
    id=st.text(max_size=5),
    weight=st.floats(0.0, 100.0),
    num_requests=st.integers(0, 300),
    prefill_tokens=COUNT,
    decode_tokens=COUNT,
    cached_tokens=COUNT,
    ttft=SECONDS,
    tpot=SECONDS,
    prefill_rate=st.floats(0.0, 1e6),
    max_requests=st.integers(0, 300),
)
QUERY = st.builds(
    Query,
    session=st.text(max_size=5),
    prompt_tokens=COUNT,
    output_tokens=COUNT,
    number=COUNT,
    draw=st.floats(0.0, 1.0, exclude_max=True),
)


@given(POLICY, QUERY, st.lists(CANDIDATE, min_size=1, max_size=8))
def test_a_choice_is_one_of_the_candidates(
    policy: RoutingPolicy, query: Query, candidates: list[Candidate]
) -> None:
    config = RoutingConfig(policy=policy)
    decision = choose(config, query, candidates)
    chosen = [one for one in candidates if one.id == decision.replica_id]
    assert chosen
    assert decision == choose(config, query, candidates)
    assert 0 <= decision.cached_tokens <= query.prompt_tokens
    if any(one.num_requests < one.max_requests for one in candidates):
        assert any(one.num_requests < one.max_requests for one in chosen)


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_equal_candidates_are_taken_equally_often(policy: RoutingPolicy) -> None:
    candidates = [Candidate(id=name, cached_tokens=5) for name in "abcde"]
    draw = Random(0).random
    taken = Counter(
        choose(
            RoutingConfig(policy=policy),
            Query(session=f"s{n}", prompt_tokens=9, number=n, draw=draw()),
            candidates,
        ).replica_id
        for n in range(2000)
    )
    assert all(320 < taken[name] < 480 for name in "abcde")


class Crowd:
    """Replicas whose requests never end: whatever a policy gathers in one place shows."""

    def __init__(self, weights: list[float], config: RoutingConfig) -> None:
        self.config = config
        self.weights = weights
        self.counts = [0] * len(weights)
        self.warm = [False] * len(weights)
        self.draw = Random(0).random

    def send(self, number: int, *, session: str, cached: int) -> None:
        candidates = [
            Candidate(
                id=f"r{place}",
                weight=weight,
                num_requests=self.counts[place],
                decode_tokens=100 * self.counts[place],
                cached_tokens=cached if self.warm[place] else 0,
                ttft=0.1,
                tpot=0.01,
                max_requests=10**6,
            )
            for place, weight in enumerate(self.weights)
        ]
        query = Query(
            session=session,
            prompt_tokens=1000,
            output_tokens=100,
            number=number,
            draw=self.draw(),
        )
        place = int(choose(self.config, query, candidates).replica_id[1:])
        self.counts[place] += 1
        self.warm[place] = True


@pytest.mark.parametrize("policy", RoutingPolicy)
@pytest.mark.parametrize("cached", [0, 990])
def test_no_death_spiral(policy: RoutingPolicy, cached: int) -> None:
    """One session, one prefix, 480 streams on 8 replicas: none has far more than its part."""
    crowd = Crowd([1.0] * 8, RoutingConfig(policy=policy))
    for number in range(480):
        crowd.send(number, session="all", cached=cached)
    assert max(crowd.counts) <= 1.25 * 60 + 5


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_weights_are_respected(policy: RoutingPolicy) -> None:
    crowd = Crowd([1.0, 2.0, 4.0], RoutingConfig(policy=policy))
    for number in range(1400):
        crowd.send(number, session=f"s{number}", cached=0)
    shares = [count / 200 for count in crowd.counts]
    assert shares == pytest.approx([1.0, 2.0, 4.0], rel=0.15)
