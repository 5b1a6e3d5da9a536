"""The one entry: a policy's name, a request and its candidates in, a decision out."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.routing import (
    latency,
    least_outstanding_tokens,
    least_requests,
    power_of_two,
    prefix_aware,
    random,
    round_robin,
    session_affinity,
    sticky,
)
from headrace.fleet.gateway.routing.pipeline import Policy, decide
from headrace.fleet.gateway.routing.values import Candidate, Decision, Query

POLICIES: Final[Mapping[RoutingPolicy, Callable[[RoutingConfig], Policy]]] = MappingProxyType(
    {
        RoutingPolicy.STICKY: sticky.policy,
        RoutingPolicy.ROUND_ROBIN: round_robin.policy,
        RoutingPolicy.RANDOM: random.policy,
        RoutingPolicy.LEAST_REQUESTS: least_requests.policy,
        RoutingPolicy.LEAST_OUTSTANDING_TOKENS: least_outstanding_tokens.policy,
        RoutingPolicy.POWER_OF_TWO: power_of_two.policy,
        RoutingPolicy.LATENCY: latency.policy,
        RoutingPolicy.SESSION_AFFINITY: session_affinity.policy,
        RoutingPolicy.PREFIX_AWARE: prefix_aware.policy,
    }
)


def choose(config: RoutingConfig, query: Query, candidates: Sequence[Candidate]) -> Decision:
    """The replica for a request. Candidates are those that may serve it at all; raises ValueError for none.

    Depends on its arguments only: the same ones give the same decision.
    """
    return decide(str(config.policy), POLICIES[config.policy](config), query, candidates)
