"""Sticky until saturated: where the prefix is cached, until that costs the first token too much.

The rule of llm-d's prefix-cache-affinity-filter (blog of 2026-08-17), with two things more:

- The time to first token that is compared holds the request's own uncached tokens, so a long prompt stays
  longer with its cache than a short one.
- A replica is left, too, when it has more than its part of all streams (`bounded_load`, and `sticky_slack` more).
  A prefix that everybody shares costs no prefill, and would else gather every stream on one replica. Each
  request that leaves makes another replica warm.

Among those that are left the least work wins: uncached tokens where prefill is what there is to do, streams
where it is decoding.
"""

from collections.abc import Sequence

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import first_token_seconds
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.prefix_aware import cached_share, least_work
from headrace.fleet.gateway.routing.session_affinity import below
from headrace.fleet.gateway.routing.values import Candidate, Kept, Query


def policy(config: RoutingConfig) -> Policy:
    """Warm ones first; then the least work."""

    def narrow(query: Query, candidates: Sequence[Candidate]) -> Kept:
        return stay_or_leave(config, query, candidates)

    def explain(
        query: Query,
        candidates: Sequence[Candidate],
        left: Sequence[Candidate],
        winner: Candidate,
    ) -> str:
        (wait,) = first_token_seconds(query, [winner], config.prefill_tokens_per_second)
        share = cached_share(query, winner)
        return f"cached {share:.2f}, first token {wait:.2f} s, {load_words(winner)}"

    return Policy(
        filters=(unsaturated, narrow),
        scorers=((1.0, least_work(config.decode_cost)),),
        pick=best,
        explain=explain,
    )


def stay_or_leave(config: RoutingConfig, query: Query, candidates: Sequence[Candidate]) -> Kept:
    """Which candidates remain: the warm ones with room, or others where those are missing or too late."""
    most = max([one.cached_tokens for one in candidates])
    if most <= 0:
        return Kept(candidates, "cold")
    room = below(config.bounded_load, config.sticky_slack)(query, candidates).candidates
    enough = config.sticky_share * most
    warm = [one for one in room if one.cached_tokens >= enough]
    if not warm:
        return Kept(room, "left, warm ones have too many streams")
    if len(warm) < len(room):
        peak = config.prefill_tokens_per_second
        soonest = min(first_token_seconds(query, warm, peak))
        # Warm ones are in this minimum too: then the difference is 0, and nothing is left for it.
        later = soonest - min(first_token_seconds(query, room, peak))
        if later > config.max_ttft_penalty:
            return Kept(room, f"left, warm ones are {later:.2f} s later")
    return Kept(warm, "warm")
