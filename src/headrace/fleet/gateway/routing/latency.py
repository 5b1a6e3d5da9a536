"""Where answers have lately been quickest, per request that is already there.

The cost is Finagle's peak-EWMA balancer's, latency times load: a quick replica that everybody runs to is
soon the dearer one, so averages that lag behind make no herd.
"""

from collections.abc import Sequence
from math import inf

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import streams
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Query


def policy(config: RoutingConfig) -> Policy:
    """Seconds of first token and of all output tokens, times requests per weight."""
    return Policy(filters=(unsaturated,), scorers=((1.0, _quick),), pick=best, explain=_explain)


def _quick(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    # One that nothing is known of is taken to be as quick as the quickest, so that it is found out.
    first = _filled([one.ttft for one in candidates], 1.0)
    each = _filled([one.tpot for one in candidates], 1e-6)
    output = query.output_tokens
    return [
        -(ttft + output * tpot) * load
        for ttft, tpot, load in zip(first, each, streams(candidates), strict=True)
    ]


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
    return f"ttft {first}, tpot {each}, {load_words(winner)}"
