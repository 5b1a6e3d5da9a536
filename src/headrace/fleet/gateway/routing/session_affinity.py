"""A session stays with its replica, unless that has far more than its part.

Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005) among those below a bound of load (Mirrokni,
Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads, 2016, section 1): a session goes to the first of its own order of
replicas that has room. When a replica comes or goes, only the sessions that gain or lose it move.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import log
from typing import Final
from zlib import crc32

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import streams, weights
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Filter, Kept, Query

_HALF: Final = 2.0**-33
_ODD: Final = 0x2C1B3C6D
_MASK: Final = (1 << 32) - 1
_UNIT: Final = 2.0**-32


def policy(config: RoutingConfig) -> Policy:
    """By the query's session; one without goes where the fewest requests are."""
    bounded = below(config.bounded_load)

    def narrow(query: Query, candidates: Sequence[Candidate]) -> Kept:
        room = bounded(query, candidates).candidates
        if not query.session:
            return Kept(room, "no session")
        order = dict(zip(_rank(query, candidates), candidates, strict=True))
        home = order[max(order)]
        ids = {one.id for one in room}
        if home.id in ids:
            return Kept([home], "session at home")
        nearest = max(rank for rank, one in order.items() if one.id in ids)
        return Kept([order[nearest]], f"session's home {home.id} is full")

    return Policy(
        filters=(unsaturated, narrow), scorers=((1.0, _idle),), pick=best, explain=_explain
    )


def _idle(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    return [-count for count in streams(candidates)]


def _explain(
    query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
) -> str:
    return load_words(winner)


def below(bound: float, slack: int = 0) -> Filter:
    """Those that, with this request, have at most `bound` times their part of all requests, and `slack` more."""

    def narrow(query: Query, candidates: Sequence[Candidate]) -> Kept:
        total = sum([one.num_requests for one in candidates]) + 1
        part = bound * total / sum(weights(candidates))
        # Below the next whole number, as the paper rounds capacities up.
        room = [one for one in candidates if one.num_requests - slack < part * one.weight]
        return Kept(room or candidates)

    return narrow


def _rank(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    """By how much each is where the session belongs."""
    digest = blake2b(query.session.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    seed = int.from_bytes(digest, "big")
    scores = []
    for one, weight in zip(candidates, weights(candidates), strict=True):
        # A checksum is linear: the multiplications undo that (in 32 bits, which are quick).
        mixed = (crc32(one.id.encode()) ^ seed) * _ODD & _MASK
        mixed = (mixed ^ mixed >> 15) * _ODD & _MASK
        # Uniform in (0, 1); the greatest of w / -ln(u) is candidate i with probability w_i / sum(w).
        scores.append(-weight / log(mixed * _UNIT + _HALF))
    return scores
