"""Where the time of a mean request goes. Pure."""

from headrace.bench.analyze.values import Observations, Part

#: A request that is reckoned with where the server has had none: tokens in and out.
USUAL_PROMPT, USUAL_OUTPUT = 512.0, 128.0
#: Requests from which on the server's own traffic counts.
ENOUGH = 3


def has_traffic(seen: Observations) -> bool:
    """The server has had requests of others, enough to go by."""
    return seen.traffic.requests >= ENOUGH


def sizes(seen: Observations) -> tuple[float, float]:
    """Tokens of a mean request's prompt and answer."""
    traffic = seen.traffic
    if not has_traffic(seen):
        return USUAL_PROMPT, USUAL_OUTPUT
    return traffic.prompt_tokens or USUAL_PROMPT, traffic.output_tokens or USUAL_OUTPUT


def parts_of(seen: Observations) -> dict[Part, float]:
    """Seconds by part; a part that nothing is known of is left out."""
    traffic, probe = seen.traffic, seen.probe
    prompt, output = sizes(seen)
    missed = prompt * (1.0 - (traffic.hit_share or 0.0))
    own = has_traffic(seen)
    found: dict[Part, float | None] = {
        Part.NETWORK: probe.round_trip,
        Part.TOKENISATION: _product(probe.tokenise, prompt),
        Part.QUEUEING: traffic.queue if own else None,
        Part.PREFILL: traffic.prefill if own else None,
        Part.DECODE: traffic.decode if own else None,
    }
    if found[Part.PREFILL] is None and own and traffic.ttft is not None:
        known = sum(found[p] or 0.0 for p in (Part.QUEUEING, Part.TOKENISATION))
        found[Part.PREFILL] = max(0.0, traffic.ttft - known)
    if found[Part.PREFILL] is None:
        found[Part.PREFILL] = _product(probe.prefill, missed)
    if found[Part.DECODE] is None:
        found[Part.DECODE] = _product(probe.tpot, max(0.0, output - 1.0))
    return {part: seconds for part, seconds in found.items() if seconds is not None}


def _product(each: float | None, count: float) -> float | None:
    return None if each is None else each * count
