"""A session stays with its replica, unless that has far more than its part.

Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005) among those below a bound of load (Mirrokni,
Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads, 2016, section 1): a session goes to the first of its own order of
replicas that has room. When a replica comes or goes, only the sessions that gain or lose it move.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import ceil, log
from typing import Final
from zlib import crc32

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import streams, weight_of
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Filter, Query

_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15
_MIX: Final = 0xBF58476D1CE4E5B9


def policy(config: RoutingConfig) -> Policy:
    """By the query's session; one without goes where the fewest requests are."""
    bounded = below(config.bounded_load)

    def explain(query: Query, candidates: Sequence[Candidate], winner: Candidate) -> str:
        if not query.session:
            return f"no session, {load_words(winner)}"
        scores = _rank(query, candidates)
        home = candidates[scores.index(max(scores))]
        where = "home" if home.id == winner.id else f"home {home.id} is full"
        return f"session, {where}, {load_words(winner)}"

    return Policy(
        filters=(unsaturated, bounded), scorers=((1.0, _rank),), pick=best, explain=explain
    )


def below(bound: float, slack: int = 0) -> Filter:
    """Those that, with this request, have at most `bound` times their part of all requests, and `slack` more."""

    def narrow(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
        per_weight = (sum(one.num_requests for one in candidates) + 1) / sum(
            map(weight_of, candidates)
        )
        part = bound * per_weight
        return [one for one in candidates if one.num_requests < ceil(part * weight_of(one)) + slack]

    return narrow


def _rank(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    if not query.session:
        return [-streams(one) for one in candidates]
    digest = blake2b(query.session.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    seed = int.from_bytes(digest, "big")
    scores = []
    for one in candidates:
        mixed = (seed ^ crc32(one.id.encode("utf-8", "surrogatepass")) * _ODD) & _MASK
        mixed = (mixed ^ mixed >> 30) * _MIX & _MASK
        mixed = (mixed ^ mixed >> 27) * _ODD & _MASK
        # Uniform in (0, 1); the greatest of w / -ln(u) is candidate i with probability w_i / sum(w).
        scores.append(weight_of(one) / -log(((mixed >> 12) + 0.5) / (1 << 52)))
    return scores
