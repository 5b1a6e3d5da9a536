"""The less busy of two drawn ones: near the best balance, and no herd when loads are told late.

Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (1996).
"""

from collections.abc import Sequence
from typing import Final

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.least_outstanding_tokens import least
from headrace.fleet.gateway.routing.load import outstanding
from headrace.fleet.gateway.routing.pipeline import (
    Policy,
    best,
    by_weight,
    load_words,
    share,
    unsaturated,
)
from headrace.fleet.gateway.routing.values import Candidate, Kept, Query

#: The query has one draw. Its first digits break a tie; those behind them, and behind those, draw the two.
_FINER: Final = 65_537.0


def policy(config: RoutingConfig) -> Policy:
    """Draws in proportion to weights, compares outstanding tokens."""
    cost = config.decode_cost

    def explain(
        query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
    ) -> str:
        return f"{outstanding(query, [winner], cost)[0]:.0f} tokens with this, {load_words(winner)}"

    return Policy(
        filters=(unsaturated, _two), scorers=((1.0, least(cost)),), pick=best, explain=explain
    )


def _two(query: Query, candidates: Sequence[Candidate]) -> Kept:
    if len(candidates) < 3:
        return Kept(candidates)
    weights = by_weight(query, candidates)
    draw = query.draw * _FINER % 1.0
    first = share(weights, draw)
    weights[first] = 0.0
    second = share(weights, draw * _FINER % 1.0)
    return Kept((candidates[first], candidates[second]))
