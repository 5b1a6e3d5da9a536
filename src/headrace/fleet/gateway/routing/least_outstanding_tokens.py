"""Where the least is still to be computed: requests differ a hundredfold in what they cost."""

from collections.abc import Sequence

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import outstanding
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Query, Scorer


def policy(config: RoutingConfig) -> Policy:
    """Counts prompt tokens before their first token and output tokens that may come; knows nothing of caches."""
    cost = config.decode_cost

    def explain(
        query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
    ) -> str:
        return f"{outstanding(query, [winner], cost)[0]:.0f} tokens with this, {load_words(winner)}"

    return Policy(filters=(unsaturated,), scorers=((1.0, least(cost)),), pick=best, explain=explain)


def least(decode_cost: float) -> Scorer:
    """Rates by outstanding tokens, the request's own included."""

    def score(query: Query, candidates: Sequence[Candidate]) -> list[float]:
        return [-tokens for tokens in outstanding(query, candidates, decode_cost)]

    return score
