"""By chance, in proportion to weights."""

from collections.abc import Sequence

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.pipeline import (
    Policy,
    by_weight,
    load_words,
    share,
    unsaturated,
)
from headrace.fleet.gateway.routing.values import Candidate, Query


def policy(config: RoutingConfig) -> Policy:
    """By the draw of the request; replicas that are full are left out."""
    return Policy(
        filters=(unsaturated,), scorers=((1.0, by_weight),), pick=_drawn, explain=_explain
    )


def _drawn(query: Query, candidates: Sequence[Candidate], weights: Sequence[float]) -> int:
    return share(weights, query.draw)


def _explain(
    query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
) -> str:
    return f"drawn {query.draw:.3f}, {load_words(winner)}"
