"""Latencies against their objectives.

The worst ratio of a latency to its objective is how overloaded the pool is; going down is checked with the ratio that
N-1 replicas would have (Dynamo's planner checks queue and KV scaled by N/(N-1) in the same way). Latencies that have
nothing to do with load move nothing: where few slots are used and nobody waits, more replicas would not help.
"""

from headrace.fleet.autoscaler.need import Need, Scene, most
from headrace.fleet.autoscaler.policies import queue, slots


def need(scene: Scene) -> Need | None:
    """None: no latency with an objective has been seen, and nothing waits or runs."""
    return most(_by_latency(scene), queue.waiting(scene), slots.packed(scene))


def _by_latency(scene: Scene) -> Need | None:
    signals, slo = scene.signals, scene.config.slo
    ratios = [
        (seen / wanted, f"{name} p95 {seen:.3g} s of {wanted:.3g} s")
        for name, seen, wanted in (
            ("TTFT", signals.ttft_p95, slo.ttft),
            ("TPOT", signals.tpot_p95, slo.tpot),
            ("ITL", signals.itl_p95, slo.itl),
        )
        if seen is not None and wanted is not None
    ]
    if slo.attainment is not None and signals.slo_attainment is not None:
        missed, allowed = 1.0 - signals.slo_attainment, 1.0 - slo.attainment
        ratio = missed / allowed if allowed > 0 else float(missed > 0) * 2.0
        said = f"{signals.slo_attainment:.1%} within objectives (at least {slo.attainment:.1%})"
        # It cannot tell how far latencies are from their objectives while all is well.
        if ratio > 1.0:
            ratios.append((ratio, said))
    if not ratios or not signals.num_ready:
        return None
    ratio, said = max(ratios)
    use = _use(scene)
    if use is not None and use <= slo.idle_use and not signals.queue_size:
        return Need(
            replicas=signals.num_ready * use / scene.config.slots.use,
            reason=f"{said}, but only {use:.0%} of slots are used: not a matter of load",
        )
    # Twice as many at once at most: latencies beyond saturation say little of how far.
    ratio = min(ratio, 2.0)
    if ratio <= 1.0:
        # In the units of `down_margin`, so that N-1 replicas keep the objectives' own margin.
        ratio *= scene.config.down_margin / slo.margin
        ratio = min(ratio, 1.0)
    return Need(replicas=signals.num_ready * ratio, reason=said)


def _use(scene: Scene) -> float | None:
    signals = scene.signals
    if signals.num_running is None or not signals.slots:
        return None
    return signals.num_running / signals.slots
