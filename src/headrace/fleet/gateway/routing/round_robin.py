"""One after the other, in proportion to weights."""

from collections.abc import Sequence
from typing import Final

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.pipeline import (
    Policy,
    by_weight,
    load_words,
    share,
    unsaturated,
)
from headrace.fleet.gateway.routing.values import Candidate, Query

#: Multiples of it, modulo 1, are spread as evenly as any sequence can be (Steinhaus' three distances).
_GOLDEN: Final = 0.6180339887498949


def policy(config: RoutingConfig) -> Policy:
    """By the number of the request; replicas that are full are left out."""
    return Policy(filters=(unsaturated,), scorers=((1.0, by_weight),), pick=_turn, explain=_explain)


def _turn(query: Query, candidates: Sequence[Candidate], weights: Sequence[float]) -> int:
    if min(weights) == max(weights):
        return query.number % len(candidates)
    return share(weights, query.number * _GOLDEN % 1.0)


def _explain(
    query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
) -> str:
    return f"turn {query.number}, {load_words(winner)}"
