"""The default beside the others on whole fleets: replicas that compute one prompt after another, and sessions that grow.

Time is counted, not taken: the same seed gives the same waits.
"""

from collections import deque
from random import Random
from statistics import mean

from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.routing.values import Candidate, Query

NUM_REPLICAS, RATE, TURN, SESSIONS, REQUESTS = 8, 1000.0, 300, 60, 1200


class Replica:
    """One that knows when it will have computed what it was sent."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, int]] = deque()
        self.cached: dict[int, int] = {}
        self.free = 0.0

    def waiting(self, now: float) -> int:
        """Uncached tokens of prompts that have no first token."""
        while self.queue and self.queue[0][0] <= now:
            self.queue.popleft()
        return sum(tokens for _, tokens in self.queue)

    def add(self, now: float, missing: int) -> float:
        """Seconds to the first token of a prompt that comes now."""
        self.free = max(self.free, now) + missing / RATE
        self.queue.append((self.free, missing))
        return self.free - now


def waits(policy: RoutingPolicy, rate: float, *, has_reuse: bool = True) -> list[float]:
    """Seconds to every first token, at so many requests per second."""
    chance = Random(3)
    replicas = [Replica() for _ in range(NUM_REPLICAS)]
    lengths = dict.fromkeys(range(SESSIONS), 0)
    now, found = 0.0, []
    for number in range(REQUESTS):
        now += chance.expovariate(rate)
        session = chance.randrange(SESSIONS)
        lengths[session] = lengths[session] % 3000 + chance.randrange(1, 2 * TURN)
        length = lengths[session]
        candidates = [
            Candidate(
                id=str(place),
                prefill_tokens=one.waiting(now),
                num_requests=len(one.queue),
                cached_tokens=min(length, one.cached.get(session, 0)) if has_reuse else 0,
                prefill_rate=RATE,
            )
            for place, one in enumerate(replicas)
        ]
        query = Query(prompt_tokens=length, number=number, draw=chance.random())
        decision = choose(RoutingConfig(policy=policy), query, candidates)
        chosen = replicas[int(decision.replica_id)]
        found.append(chosen.add(now, length - decision.cached_tokens))
        chosen.cached[session] = length
    return found


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.95 * len(seconds))]


def test_where_replicas_are_free_the_default_waits_no_longer_than_any_other() -> None:
    sticky = waits(RoutingPolicy.STICKY, 4.0)
    for other in RoutingPolicy:
        seconds = waits(other, 4.0)
        assert mean(sticky) <= 1.02 * mean(seconds), other
        assert p95(sticky) <= 1.02 * p95(seconds), other


def test_where_all_are_busy_the_default_computes_less_again_and_so_waits_less() -> None:
    sticky = waits(RoutingPolicy.STICKY, 24.0)
    for other in (RoutingPolicy.PREFIX_AWARE, RoutingPolicy.LEAST_OUTSTANDING_TOKENS):
        seconds = waits(other, 24.0)
        assert mean(sticky) < 0.5 * mean(seconds), other
        assert p95(sticky) < 0.5 * p95(seconds), other


def test_without_reuse_the_default_is_as_good_as_least_outstanding_tokens() -> None:
    for rate in (4.0, 6.0):
        sticky = waits(RoutingPolicy.STICKY, rate, has_reuse=False)
        other = waits(RoutingPolicy.LEAST_OUTSTANDING_TOKENS, rate, has_reuse=False)
        assert mean(sticky) <= 1.05 * mean(other)
        assert p95(sticky) <= 1.05 * p95(other)
