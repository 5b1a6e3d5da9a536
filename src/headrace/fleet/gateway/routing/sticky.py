"""Sticky until saturated: where the first token comes soonest, and where the prefix is cached when all are busy.

What is compared is one sum per replica, in prompt tokens: those that wait there, and the request's own that are not
cached. That is the wait for the first token, which a cached prefix shortens as much as a queue lengthens it.

- Own tokens count more, the fuller the fleet is. While some replica is free, computing a prefix again delays nobody, and
  waiting for it gains nothing. When prompts wait everywhere, each token that is computed again delays everybody behind:
  then its first token comes later, and all others' sooner. The weight grows from 1 to 1 + `reuse_weight` as the least
  busy of the replicas that can take the request has a tenth of its prompt waiting.
- Output tokens count a quarter of `decode_cost`: they are made beside prompts, not before them.
- However warm, a replica is left when its first token would come `max_ttft_penalty` later than the soonest (the bound of
  llm-d's prefix-cache-affinity-filter, blog of 2026-08-17), or when it has more than its part of all streams
  (`bounded_load`, and `sticky_slack` more). A prefix that everybody shares costs no prefill, and would else gather
  every stream on one replica. Each request that leaves makes another replica warm.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import crowding, first_token_seconds, work
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.prefix_aware import cached_share
from headrace.fleet.gateway.routing.session_affinity import below
from headrace.fleet.gateway.routing.values import Candidate, Filter, Kept, Query, Scorer

#: How much of an output token's cost delays a first token.
_BESIDE: Final = 0.25
#: From this share on, of the most that any replica has cached of the prompt, a replica is called warm.
_WARM: Final = 0.5


def policy(config: RoutingConfig) -> Policy:
    """Warm ones while they are worth their wait."""

    def explain(
        query: Query,
        candidates: Sequence[Candidate],
        left: Sequence[Candidate],
        winner: Candidate,
    ) -> str:
        (wait,) = first_token_seconds(query, [winner], config.prefill_tokens_per_second)
        share = cached_share(query, winner)
        standing = _standing(config, query, candidates, left, winner)
        return f"{standing}, cached {share:.2f}, first token {wait:.2f} s, {load_words(winner)}"

    return Policy(
        filters=(unsaturated, _roomy(config)),
        scorers=((1.0, _soonest(config)),),
        pick=best,
        explain=explain,
    )


def _roomy(config: RoutingConfig) -> Filter:
    """Those that have room for a stream; all, where nobody has anything of the prompt."""
    roomy = below(config.bounded_load, config.sticky_slack)

    def narrow(query: Query, candidates: Sequence[Candidate]) -> Kept:
        if all(one.cached_tokens <= 0 for one in candidates):
            return Kept(candidates)
        return roomy(query, candidates)

    return narrow


def _soonest(config: RoutingConfig) -> Scorer:
    """Rates by what is to be done before the first token, and by what is computed that is cached elsewhere; -inf for
    those whose first token would be much later than the soonest.

    No filter leaves those out: one that is free counts as free even where its own first token would be too late.
    """

    def score(query: Query, candidates: Sequence[Candidate]) -> list[float]:
        again = 1.0 + config.reuse_weight * crowding(query, candidates)
        cost = _BESIDE * config.decode_cost
        tokens = work(query, candidates, cost, own_weight=again)
        if all(one.cached_tokens <= 0 for one in candidates):
            return [-count for count in tokens]
        seconds = first_token_seconds(query, candidates, config.prefill_tokens_per_second)
        latest = min(seconds) + config.max_ttft_penalty
        return [
            -count if wait <= latest else -inf for count, wait in zip(tokens, seconds, strict=True)
        ]

    return score


def _standing(
    config: RoutingConfig,
    query: Query,
    candidates: Sequence[Candidate],
    left: Sequence[Candidate],
    winner: Candidate,
) -> str:
    most = max([one.cached_tokens for one in candidates])
    if most <= 0:
        return "cold"
    if winner.cached_tokens >= _WARM * most:
        return "warm"
    warm = [one for one in left if one.cached_tokens >= _WARM * most]
    if not warm:
        return "left, warm ones have too many streams"
    rate = config.prefill_tokens_per_second
    (own,) = first_token_seconds(query, [winner], rate)
    later = min(first_token_seconds(query, warm, rate)) - own
    if later > 0:
        return f"left, warm ones are {later:.2f} s later"
    return "left, warm ones have no less to do"
