"""Where the least is to be done, cached prefix counted: reuse and load are one sum.

The cost of NVIDIA Dynamo's KV router (lib/kv-router, scheduling/selector.rs) in tokens: uncached prompt tokens, those of
others before it, and output tokens. A replica that has the prefix wins as long as its queue is shorter than
what it saves.
"""

from collections.abc import Sequence

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import work
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Query, Scorer


def policy(config: RoutingConfig) -> Policy:
    """Least work; a tie goes by the draw."""
    cost = config.decode_cost

    def explain(
        query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
    ) -> str:
        (tokens,) = work(query, [winner], cost)
        return f"cached {cached_share(query, winner):.2f}, {tokens:.0f} tokens with this, {load_words(winner)}"

    return Policy(
        filters=(unsaturated,), scorers=((1.0, least_work(cost)),), pick=best, explain=explain
    )


def least_work(decode_cost: float) -> Scorer:
    """Rates by work, the request's own included."""

    def score(query: Query, candidates: Sequence[Candidate]) -> list[float]:
        return [-tokens for tokens in work(query, candidates, decode_cost)]

    return score


def cached_share(query: Query, candidate: Candidate) -> float:
    """Share of the prompt that the replica probably has."""
    return min(1.0, candidate.cached_tokens / query.prompt_tokens) if query.prompt_tokens else 0.0
