"""Use of CPU or GPU alone, as a plain horizontal autoscaler goes by it: the baseline.

desired = N x use / target (Kubernetes, HorizontalPodAutoscaler, "algorithm details"). It sees no queue, and a replica
that is always busy looks the same with one request and with a hundred.
"""

from headrace.fleet.autoscaler.need import Need, Scene


def need(scene: Scene) -> Need | None:
    """None: use is not told."""
    signals, target = scene.signals, scene.config.utilisation
    if signals.utilisation is None or not signals.num_ready:
        return None
    return Need(
        replicas=signals.num_ready * signals.utilisation / target,
        reason=f"{signals.utilisation:.0%} use of {signals.num_ready} replicas (target {target:.0%})",
    )
