"""From observations to a verdict. Pure."""

from headrace.bench.analyze.findings import findings_of
from headrace.bench.analyze.parts import has_traffic, parts_of, sizes
from headrace.bench.analyze.roofline import (
    Distance,
    decode_distance,
    is_quiet,
    prefill_distance,
    steps_of,
)
from headrace.bench.analyze.values import Analysis, Observations, Part, ServerKind


def analyze(seen: Observations) -> Analysis:
    """What bounds its latency, how far it is from its hardware, and what would help most."""
    parts = parts_of(seen)
    total = sum(parts.values())
    bound = max(parts, key=lambda part: parts[part]) if total > 0 else None
    prompt, output = sizes(seen)
    if has_traffic(seen):
        basis = (
            f"{seen.traffic.requests:.0f} requests in {seen.traffic.seconds:.0f} s, on average {prompt:.0f} tokens in"
            f" and {output:.0f} out"
        )
    else:
        basis = f"the probe alone, reckoned for {prompt:.0f} tokens in and {output:.0f} out"
    return Analysis(
        bound=bound,
        seconds={str(part): parts[part] for part in sorted(parts, key=lambda p: -parts[p])},
        basis=basis,
        sentences=tuple(_sentences(seen, parts, bound)),
        findings=tuple(findings_of(seen, parts)),
        unknown=tuple(_unknown(seen, parts)),
    )


def _sentences(seen: Observations, parts: dict[Part, float], bound: Part | None) -> list[str]:
    if bound is None:
        return []
    total = sum(parts.values())
    first = f"{str(bound).capitalize()} bounds latency: {_time(parts[bound])} of {_time(total)}"
    said = [f"{first}, {parts[bound] / total:.0%} of a request."]
    if (distance := decode_distance(seen)) is not None:
        streams = "one stream" if distance.batch == 1.0 else f"{distance.batch:.1f} streams at once"
        said.append(_of_limit(f"Decoding {streams}", distance, "memory", seen.hardware.source))
    if (distance := prefill_distance(seen)) is not None:
        said.append(_of_limit("Prefill", distance, "arithmetic", seen.hardware.source))
    if (steps := steps_of(seen)) is not None and (probe := seen.probe).batch_tpot and probe.tpot:
        times = probe.batch * probe.tpot / probe.batch_tpot
        said.append(
            f"{probe.batch} streams at once make {times:.1f} times the tokens of one: a step takes"
            f" {_time(steps.fixed)} and {_time(steps.each)} for each sequence."
        )
    traffic = seen.traffic
    if traffic.hit_share is not None and has_traffic(seen):
        said.append(f"{traffic.hit_share:.0%} of the prompt tokens came out of a prefix cache.")
    return said


def _of_limit(what: str, distance: Distance, kind: str, source: str) -> str:
    return (
        f"{what} reaches {distance.rate:,.1f} tokens a second, {distance.share:.0%} of the {distance.limit:,.1f} that the"
        f" machine's {kind} allows ({source})."
    )


def _unknown(seen: Observations, parts: dict[Part, float]) -> list[str]:
    said: list[str] = []
    if seen.kind is ServerKind.OTHER:
        said.append("Queueing: the server shows no metrics at /metrics that are known here.")
    elif not has_traffic(seen):
        said.append(
            f"Queueing: {seen.traffic.requests:.0f} requests ended while it was watched; watch longer (--seconds)."
        )
    missing = [str(p) for p in (Part.TOKENISATION, Part.PREFILL, Part.DECODE) if p not in parts]
    if missing:
        said.append(f"No figure for {', '.join(missing)}: the probe was left out or refused.")
    if not is_quiet(seen):
        said.append(
            f"How a step grows with its batch, and how far prefill is from the hardware: {seen.traffic.running:.1f}"
            " requests of others ran beside the probe; ask again when the server is quiet."
        )
    if seen.model.weight_bytes is None:
        said.append("Distance from the hardware: the server does not tell the size of its weights.")
    elif seen.hardware.memory is None:
        said.append(
            "Distance from the hardware: the server is elsewhere; say what its machine can do"
            " (--memory-bandwidth, --compute)."
        )
    return said


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
