"""A policy in three steps: filters leave some candidates, scorers rate them, a pick takes one."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.fleet.gateway.routing.load import is_saturated, weights
from headrace.fleet.gateway.routing.values import Candidate, Decision, Filter, Kept, Query, Scorer

Pick = Callable[[Query, Sequence[Candidate], Sequence[float]], int]
"""The place of the one that is taken, of at least one candidate, by their scores."""
Explain = Callable[[Query, Sequence[Candidate], Sequence[Candidate], Candidate], str]
"""A few words and numbers on why this one, of all that there were and those that the filters left."""


class Policy(Struct, frozen=True, kw_only=True):
    """One way to choose. Filters work in order; the scores of several scorers are added, each times its weight."""

    filters: tuple[Filter, ...] = ()
    scorers: tuple[tuple[float, Scorer], ...]
    pick: Pick
    explain: Explain


def decide(name: str, policy: Policy, query: Query, candidates: Sequence[Candidate]) -> Decision:
    """The decision of `policy` among at least one candidate; raises ValueError for none.

    A filter that leaves nothing is passed over: a rule of thumb must not refuse a request.
    """
    if not candidates:
        raise ValueError("There is no candidate to choose from.")
    left, words = candidates, []
    for narrow in policy.filters:
        kept = narrow(query, left)
        left = kept.candidates or left
        if kept.words:
            words.append(kept.words)
    winner = left[policy.pick(query, left, _scores(policy, query, left))]
    words.append(policy.explain(query, candidates, left, winner))
    return Decision(
        replica_id=winner.id,
        policy=name,
        reason=f"{', '.join(words)}; {len(left)} of {len(candidates)} candidates",
        cached_tokens=min(winner.cached_tokens, query.prompt_tokens),
    )


def _scores(policy: Policy, query: Query, left: Sequence[Candidate]) -> Sequence[float]:
    if len(policy.scorers) == 1:
        return policy.scorers[0][1](query, left)
    totals = [0.0] * len(left)
    for weight, scorer in policy.scorers:
        for place, score in enumerate(scorer(query, left)):
            totals[place] += weight * score
    return totals


def unsaturated(query: Query, candidates: Sequence[Candidate]) -> Kept:
    """Those that may have one more request; all, where none may."""
    return Kept([one for one in candidates if one.num_requests < one.max_requests] or candidates)


def by_weight(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    """Each candidate's weight, for picks that go by shares."""
    return weights(candidates)


def best(query: Query, candidates: Sequence[Candidate], scores: Sequence[float]) -> int:
    """The highest score; of several equal ones the one that the query's draw says."""
    highest = max(scores)
    tied = [place for place, score in enumerate(scores) if score == highest]
    return tied[at(query.draw, len(tied))] if len(tied) > 1 else tied[0]


def share(scores: Sequence[float], point: float) -> int:
    """The place whose share of the sum holds `point`, in [0, 1): scores are sizes of shares laid side by side."""
    left = point * sum(scores)
    for place, size in enumerate(scores):
        left -= size
        if left < 0:
            return place
    return len(scores) - 1


def at(draw: float, count: int) -> int:
    """A draw in [0, 1) as one of `count` places."""
    return min(count - 1, max(0, int(draw * count)))


def load_words(candidate: Candidate) -> str:
    """How busy it was, for an explanation."""
    full = ", saturated" if is_saturated(candidate) else ""
    return f"{candidate.num_requests} requests{full}"
