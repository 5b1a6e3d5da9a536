"""Tokens that come in against what a replica was seen to process, and how long requests wait.

The rate sees a rise before a queue does; a burst is seen as it comes, by what it takes to be within the TTFT; the queue sees
what the rate cannot, such as answers longer than expected.
"""

from math import inf

from headrace.fleet.autoscaler.need import Need, Scene, most
from headrace.fleet.autoscaler.policies import queue, slots


def need(scene: Scene) -> Need | None:
    """The largest of rate, queue, and what runs now. While no replica has been seen full, slots stand for the rate.

    None: neither is known.
    """
    rate = by_rate(scene, scene.signals.incoming_tokens_per_second)
    return most(
        rate if rate is not None else slots.need(scene),
        by_burst(scene),
        queue.waiting(scene),
        slots.packed(scene),
    )


def by_burst(scene: Scene) -> Need | None:
    """Replicas for what came at once, at most one a request: none is shared. None: not known, no capacity is, or no TTFT is
    wanted.
    """
    tokens, requests = scene.signals.burst_tokens_per_second, scene.signals.burst_requests
    capacity = capacity_of(scene)
    if tokens is None or capacity is None:
        return None
    return Need(
        replicas=min(tokens / capacity, inf if requests is None else requests),
        reason=f"a burst takes {tokens:.0f} tokens/s to be within the TTFT, and a replica does {capacity:.0f}",
    )


def by_rate(scene: Scene, tokens_per_second: float | None, said: str = "come in") -> Need | None:
    """Replicas for so many weighted tokens a second. None: not known, or no capacity is."""
    capacity = capacity_of(scene)
    if tokens_per_second is None or capacity is None:
        return None
    load = scene.config.tokens.load
    return Need(
        replicas=tokens_per_second / (capacity * load),
        reason=f"{tokens_per_second:.0f} tokens/s {said}, and a replica does {capacity:.0f} (target {load:.0%})",
    )


def capacity_of(scene: Scene) -> float | None:
    """Weighted tokens a second of one replica, as configured or as seen; None: not known."""
    told = scene.config.tokens.replica_tokens_per_second
    return told if told is not None else scene.signals.capacity_tokens_per_second
