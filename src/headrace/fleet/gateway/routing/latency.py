"""Where answers have lately been quickest, per request that is already there.

The cost is Finagle's peak-EWMA balancer's, latency times load: a quick replica that everybody runs to is
soon the dearer one, so averages that lag behind make no herd.
"""

from collections.abc import Sequence
from math import isfinite

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.routing.load import streams
from headrace.fleet.gateway.routing.pipeline import Policy, best, load_words, unsaturated
from headrace.fleet.gateway.routing.values import Candidate, Query


def policy(config: RoutingConfig) -> Policy:
    """Seconds of first token and of all output tokens, times requests per weight."""
    return Policy(filters=(unsaturated,), scorers=((1.0, _quick),), pick=best, explain=_explain)


def _quick(query: Query, candidates: Sequence[Candidate]) -> list[float]:
    # One that nothing is known of is taken to be as quick as the quickest, so that it is found out.
    ttft = min((t for one in candidates if (t := _known(one.ttft)) is not None), default=1.0)
    tpot = min((t for one in candidates if (t := _known(one.tpot)) is not None), default=0.0)
    scores = []
    for one in candidates:
        first, each = _known(one.ttft), _known(one.tpot)
        seconds = (ttft if first is None else first) + query.output_tokens * (
            tpot if each is None else each
        )
        scores.append(-seconds * streams(one))
    return scores


def _known(seconds: float | None) -> float | None:
    # Nothing takes no time: an average of 0 would make any load free.
    return max(seconds, 1e-6) if seconds is not None and isfinite(seconds) else None


def _explain(query: Query, candidates: Sequence[Candidate], winner: Candidate) -> str:
    first = "unknown" if winner.ttft is None else f"{winner.ttft:.3f} s"
    each = "unknown" if winner.tpot is None else f"{winner.tpot * 1000:.1f} ms"
    return f"ttft {first}, tpot {each}, {load_words(winner)}"
