"""Where answers have lately been quickest, per request that is already there.

The cost is Finagle's peak-EWMA balancer's, latency times load: a quick replica that everybody runs to is
soon the dearer one, so averages that lag behind make no herd. An average is only renewed by requests: a few go by load
alone, so that a replica that was slow once is found to be well again.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import streams
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Query

#: Share of requests that look for news.
_EXPLORING: Final = 1 / 64


def policy(config: RoutingConfig) -> Policy:
    """Seconds of first token and of all output tokens, times requests per weight."""
    return Policy(filters=(unsaturated,), scorers=((1.0, _quick),), pick=best, explain=_explain)


def _quick(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    # One that nothing is known of is taken to be as quick as the quickest, so that it is found out.
    loads = streams(candidates)
    if _explores(query):
        return [-load for load in loads]
    first = _filled([one.ttft for one in candidates], 1.0)
    each = _filled([one.tpot for one in candidates], 1e-6)
    output = query.output_tokens
    return [
        -(ttft + output * tpot) * load for ttft, tpot, load in zip(first, each, loads, strict=True)
    ]


def _explores(query: Query) -> bool:
    # The draw's fine digits: its first ones break ties.
    return query.draw * 65_537.0 % 1.0 < _EXPLORING


def _filled(seconds: Sequence[float | None], default: float) -> list[float]:
    """Without gaps. Nothing takes no time: an average of 0 would make any load free."""
    known = [s for s in seconds if s is not None and 0 < s < inf]
    least = min(known) if known else default
    return [s if s is not None and 0 < s < inf else least for s in seconds]


def _explain(
    query: Query, candidates: Sequence[Candidate], left: Sequence[Candidate], winner: Candidate
) -> str:
    first = "unknown" if winner.ttft is None else f"{winner.ttft:.3f} s"
    each = "unknown" if winner.tpot is None else f"{winner.tpot * 1000:.1f} ms"
    words = "by load for once, " if _explores(query) else ""
    return f"{words}ttft {first}, tpot {each}, {load_words(winner)}"
