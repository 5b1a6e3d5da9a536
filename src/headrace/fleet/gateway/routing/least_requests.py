"""Where the fewest requests are, per weight."""

from collections.abc import Sequence

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import streams
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Query


def policy(config: RoutingConfig) -> Policy:
    """Counts requests, whatever their size."""
    return Policy(filters=(unsaturated,), scorers=((1.0, _idle),), pick=best, explain=_explain)


def _idle(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    return [-count for count in streams(candidates)]


def _explain(
    query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
) -> str:
    return load_words(winner)
