"""The window of latencies against sums made afresh."""

from math import ceil
from random import Random

from headrace.config.fleet.scaling import Objectives
from headrace.fleet.autoscaler.latencies import MAX_SAMPLES, MIN_SAMPLES, Latencies, Sample


def p95(values: list[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[ceil(0.95 * len(known)) - 1] if len(known) >= MIN_SAMPLES else None


def share(samples: list[Sample], slo: Objectives) -> float | None:
    judged = [
        all(value <= bound for value, bound in known)
        for one in samples
        if (
            known := [
                (value, bound)
                for value, bound in ((one.ttft, slo.ttft), (one.tpot, slo.tpot), (one.itl, slo.itl))
                if value is not None and bound is not None
            ]
        )
    ]
    return sum(judged) / len(judged) if len(judged) >= MIN_SAMPLES else None


def test_it_says_what_sums_made_afresh_say() -> None:
    rng, latencies, kept = Random(1), Latencies(), list[Sample]()
    objectives = (Objectives(ttft=0.5), Objectives(tpot=0.3, itl=0.6), Objectives())
    for number in range(2000):
        at = number / 10
        ttft, tpot, itl = (rng.choice((None, rng.random(), 0.5)) for _ in range(3))
        latencies.note(Sample(at, ttft, tpot, itl))
        kept.append(Sample(at, ttft, tpot, itl))
        if rng.random() < 0.1:
            latencies.forget(at - 30.0)
            kept = [one for one in kept if one.at >= at - 30.0]
            slo = objectives[number // 700]
            assert len(latencies) == len(kept)
            assert latencies.ttft.p95() == p95([one.ttft for one in kept])
            assert latencies.tpot.p95() == p95([one.tpot for one in kept])
            assert latencies.itl.p95() == p95([one.itl for one in kept])
            assert latencies.attainment(slo) == share(kept, slo)


def test_it_is_bounded_though_nobody_asks() -> None:
    latencies = Latencies()
    for number in range(5 * MAX_SAMPLES):
        latencies.note(Sample(float(number), float(number), None, 1.0))
    assert len(latencies) == len(latencies.ttft) == len(latencies.itl) == MAX_SAMPLES
    assert len(latencies.ttft._new) + len(latencies.ttft._gone) <= 2 * MAX_SAMPLES
    last = 5 * MAX_SAMPLES
    assert latencies.ttft.p95() == last - MAX_SAMPLES + ceil(0.95 * MAX_SAMPLES) - 1
    assert len(latencies.tpot) == 0
    assert latencies.tpot.p95() is None
