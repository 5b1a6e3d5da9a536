"""How busy a replica is, as numbers that are compared between replicas: every policy has one of them in it.

All count the request itself as if it were already there: a replica of weight 2 then gets twice as many.
"""

from typing import Final

from headrace.fleet.gateway.routing.values import Candidate, Query

#: A replica in slow start may have next to nothing of its weight; it must not be divided by.
_LEAST: Final = 1e-6


def weight_of(candidate: Candidate) -> float:
    """Its weight, above 0."""
    return max(candidate.weight, _LEAST)


def is_saturated(candidate: Candidate) -> bool:
    """It has as many requests as it should have at once."""
    return candidate.num_requests >= candidate.max_requests


def streams(candidate: Candidate) -> float:
    """Requests per weight."""
    return (candidate.num_requests + 1) / max(candidate.weight, _LEAST)


def uncached_tokens(query: Query, candidate: Candidate) -> int:
    """Prompt tokens of the request that the replica would have to compute."""
    return max(0, query.prompt_tokens - candidate.cached_tokens)


def outstanding(query: Query, candidate: Candidate, decode_cost: float) -> float:
    """Work per weight, in prompt tokens, without regard to caches; an output token counts as `decode_cost`."""
    prefill = candidate.prefill_tokens + query.prompt_tokens
    decode = candidate.decode_tokens + query.output_tokens
    return (prefill + decode_cost * decode) / max(candidate.weight, _LEAST)


def work(query: Query, candidate: Candidate, decode_cost: float) -> float:
    """As `outstanding`, but of the request's prompt only what the replica has not cached."""
    prefill = candidate.prefill_tokens + max(0, query.prompt_tokens - candidate.cached_tokens)
    decode = candidate.decode_tokens + query.output_tokens
    return (prefill + decode_cost * decode) / max(candidate.weight, _LEAST)


def first_token_seconds(query: Query, candidate: Candidate, peak: float | None) -> float:
    """Estimated time to first token: the uncached tokens before it and its own, at the replica's prefill rate.

    `peak` is that rate for a replica of weight 1; None takes what was measured of this one.
    """
    rate = candidate.prefill_rate if peak is None else peak * candidate.weight
    waiting = candidate.prefill_tokens + max(0, query.prompt_tokens - candidate.cached_tokens)
    return waiting / max(rate, _LEAST)
