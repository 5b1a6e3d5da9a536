"""How busy replicas are, as numbers that are compared between them: every policy has one of them in it.

All count the request itself as if it were already there: a replica of weight 2 then gets twice as many.
They take all candidates at once, because a call for each would cost more than the arithmetic.
"""

from collections.abc import Sequence
from typing import Final

from headrace.fleet.gateway.routing.values import Candidate, Query

#: A replica in slow start may have next to nothing of its weight; it must not be divided by.
_LEAST: Final = 1e-6
#: A fleet is crowded where this many times what waits at its least busy replica is as long as a request's prompt.
_CROWDED: Final = 10


def weights(candidates: Sequence[Candidate]) -> list[float]:
    """Their weights, each above 0."""
    return [w if (w := one.weight) > _LEAST else _LEAST for one in candidates]


def is_saturated(candidate: Candidate) -> bool:
    """It has as many requests as it should have at once."""
    return candidate.num_requests >= candidate.max_requests


def streams(candidates: Sequence[Candidate]) -> list[float]:
    """Requests per weight."""
    return [
        (one.num_requests + 1) / (w if (w := one.weight) > _LEAST else _LEAST) for one in candidates
    ]


def outstanding(query: Query, candidates: Sequence[Candidate], decode_cost: float) -> list[float]:
    """Work per weight, in prompt tokens, without regard to caches; an output token counts as `decode_cost`."""
    own = query.prompt_tokens + decode_cost * query.output_tokens
    return [
        (own + one.prefill_tokens + decode_cost * one.decode_tokens)
        / (w if (w := one.weight) > _LEAST else _LEAST)
        for one in candidates
    ]


def work(
    query: Query, candidates: Sequence[Candidate], decode_cost: float, *, own_weight: float = 1.0
) -> list[float]:
    """As `outstanding`, but of the request's prompt only what each has not cached, times `own_weight`."""
    prompt, own = query.prompt_tokens, decode_cost * query.output_tokens
    return [
        (
            own
            + (own_weight * (prompt - cached) if (cached := one.cached_tokens) < prompt else 0)
            + one.prefill_tokens
            + decode_cost * one.decode_tokens
        )
        / (w if (w := one.weight) > _LEAST else _LEAST)
        for one in candidates
    ]


def crowding(query: Query, candidates: Sequence[Candidate]) -> float:
    """Whether prompts wait everywhere: 0 where one of the candidates has none, 1 where each has a tenth of the tokens
    waiting, per weight, that the request asks for. Of at least one candidate.

    The least one decides, not a share of them: one that is free can take the request however many there are. In a large
    fleet the least is small by chance, hence a tenth.
    """
    least = min(
        [one.prefill_tokens / (w if (w := one.weight) > _LEAST else _LEAST) for one in candidates]
    )
    return min(1.0, _CROWDED * least / max(1, query.prompt_tokens))


def first_token_seconds(
    query: Query, candidates: Sequence[Candidate], rate: float | None
) -> list[float]:
    """Estimated time to first token: uncached tokens before it and its own, at each one's prefill rate.

    `rate` is that for a replica of weight 1; None takes what was measured of each.
    """
    prompt = query.prompt_tokens
    return [
        (one.prefill_tokens + (prompt - cached if (cached := one.cached_tokens) < prompt else 0))
        / (
            own
            if (own := one.prefill_rate if rate is None else rate * one.weight) > _LEAST
            else _LEAST
        )
        for one in candidates
    ]
