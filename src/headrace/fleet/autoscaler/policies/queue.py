"""Requests that wait, and how long; with nothing waiting, what runs must fit."""

from headrace.config.units import counted
from headrace.fleet.autoscaler.need import Need, Scene, most
from headrace.fleet.autoscaler.policies import slots


def need(scene: Scene) -> Need | None:
    """More for what waits; else what runs, packed full. None: nothing waits, and what runs is not known."""
    return most(waiting(scene), slots.packed(scene))


def waiting(scene: Scene) -> Need | None:
    """What is ready and one more for every so many that wait, or for one that waits too long. None: it does not matter."""
    signals, targets = scene.signals, scene.config.queue
    if not signals.queue_size:
        return None
    outside = signals.queue_size - signals.num_waiting
    extra = int(outside / targets.per_replica)
    wait = signals.queue_wait
    if wait is not None and wait > targets.wait:
        extra = max(extra, 1)
    if not signals.num_ready:
        extra = max(extra, 1)
    wanted = max(
        float(signals.num_ready + extra) if extra else 0.0,
        # Inside replicas a few always wait for their next step: what counts is how many each has.
        signals.num_waiting / targets.per_replica,
    )
    if wanted <= signals.num_ready:
        return None
    waited = "" if wait is None else f", the longest for {wait:.1f} s"
    return Need(
        # What goes on while nobody is spare is not told by a queue: over the tolerance, whatever there is.
        replicas=wanted * (1.0 + scene.config.tolerance),
        reason=f"{counted(signals.queue_size, 'request')} {'waits' if signals.queue_size == 1 else 'wait'}"
        f" for {counted(signals.num_ready, 'ready replica')}{waited}",
    )
