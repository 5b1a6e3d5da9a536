"""Sequences that run or wait, of those that could run; and KV blocks in use."""

from headrace.config.units import counted
from headrace.fleet.autoscaler.need import Need, Scene, most


def need(scene: Scene) -> Need | None:
    """The tighter of the two. None: neither is known, or no replica is ready."""
    targets = scene.config.slots
    return most(_sequences(scene, targets.use), _blocks(scene, targets.kv))


def packed(scene: Scene) -> Need | None:
    """What runs and waits, into full replicas: fewer can never do. None: not known."""
    return _sequences(scene, 1.0)


def _sequences(scene: Scene, use: float) -> Need | None:
    signals = scene.signals
    running, slots = signals.num_running, signals.slots
    if running is None or not slots or not signals.num_ready:
        return None
    wanted = running + signals.queue_size
    return Need(
        replicas=wanted / (slots / signals.num_ready) / use,
        reason=f"{counted(wanted, 'sequence')} {'runs or waits' if wanted == 1 else 'run or wait'},"
        f" for {counted(slots, 'slot')} of {counted(signals.num_ready, 'replica')} (target {use:.0%})",
    )


def _blocks(scene: Scene, share: float) -> Need | None:
    signals = scene.signals
    if signals.kv_usage is None or not signals.num_ready:
        return None
    return Need(
        replicas=signals.num_ready * signals.kv_usage / share,
        reason=f"{signals.kv_usage:.0%} of KV blocks are in use (target {share:.0%})",
    )
