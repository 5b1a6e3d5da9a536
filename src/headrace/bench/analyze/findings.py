"""Changes that would help, each with an estimate from the figures. Pure."""

from collections.abc import Iterator, Mapping

from headrace.bench.analyze.roofline import decode_distance, prefill_distance, steps_of
from headrace.bench.analyze.values import Finding, Observations, Part, ServerKind

#: A change that saves less than this share is not worth a sentence.
LEAST = 0.02
_FULL = 0.9
#: Bytes of a key or value by its format, beside int8 with its scales.
_INT8_FACTORS = {"f32": 3.7, "float32": 3.7, "bf16": 1.9, "f16": 1.9, "bfloat16": 1.9, "auto": 1.9}
#: Bits of a weight in 4-bit formats with scales (w4g32).
_FOUR_BITS = 5.0


def findings_of(seen: Observations, parts: Mapping[Part, float]) -> list[Finding]:
    """The most helpful first."""
    total = sum(parts.values())
    if total <= 0:
        return []
    makers = (_slots, _memory, _replica, _routing, _prefill, _decode, _tokenisation, _network)
    found = [finding for make in makers for finding in make(seen, parts, total)]
    return sorted((f for f in found if f.gain >= LEAST), key=lambda finding: -finding.gain)


def _slots(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    traffic, steps = seen.traffic, steps_of(seen)
    queue = parts.get(Part.QUEUEING, 0.0)
    slots, running = traffic.max_running, traffic.running
    if not (slots and running and traffic.waiting) or running < _FULL * slots or steps is None:
        return
    if traffic.kv_usage is not None and traffic.kv_usage > 0.8:
        return  # more slots would only wait for memory
    ratio = 2.0 * steps.seconds(slots) / max(1e-12, steps.seconds(2.0 * slots))
    yield Finding(
        change=f"More slots: --max-num-seqs {2 * slots:.0f}",
        gain=max(0.0, queue * (1.0 - 1.0 / ratio)) / total,
        because=(
            f"{running:.0f} of {slots:.0f} slots are used and {traffic.waiting:.0f} requests wait; a step of"
            f" {2 * slots:.0f} sequences would take {_time(steps.seconds(2 * slots))} after"
            f" {_time(steps.seconds(slots))}, which is {ratio:.2f} times the tokens a second."
        ),
    )


def _memory(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    traffic = seen.traffic
    queue = parts.get(Part.QUEUEING, 0.0)
    usage, preempted = traffic.kv_usage, traffic.preemptions or 0.0
    is_full = usage is not None and usage >= _FULL and bool(traffic.waiting)
    if not (is_full or preempted):
        return
    again = min(1.0, preempted / max(1.0, traffic.requests)) * parts.get(Part.PREFILL, 0.0)
    why = f"The KV cache is {usage or 0:.0%} full, {traffic.waiting or 0:.0f} requests wait and {preempted:.0f} were preempted"
    yield Finding(
        change="A KV cache of twice the size: --kv-memory",
        gain=min(1.0, (queue / 2.0 + again) / total),
        because=f"{why}; with twice the memory half of the wait of {_time(queue)} and what is computed again would go.",
    )
    factor = _INT8_FACTORS.get(seen.model.kv_format)
    if factor is not None:
        yield Finding(
            change="Keys and values in 8 bits: --kv-dtype int8",
            gain=min(1.0, (queue * (1.0 - 1.0 / factor) + again) / total),
            because=f"{why}; in {seen.model.kv_format} a token takes {factor:g} times what it would in int8.",
        )


def _replica(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    traffic = seen.traffic
    queue = parts.get(Part.QUEUEING, 0.0)
    if not queue:
        return
    count = max(1.0, traffic.replicas or 1.0)
    slots = traffic.max_running
    used = traffic.running / slots if slots and traffic.running is not None else None
    if used is not None and used < 0.5:
        # Slots are free: it waits for the steps of others to end, and their work is what a replica would share.
        yield Finding(
            change=f"One more replica ({count + 1:.0f})",
            gain=queue / (count + 1.0) / total,
            because=(
                f"A request waits {_time(queue)}, {queue / total:.0%} of its time, though {used:.0%} of the slots are used:"
                f" steps are long. With {count + 1:.0f} replicas each has {count / (count + 1):.0%} of the work, and the"
                f" wait is about {_time(queue * count / (count + 1))}."
            ),
        )
        return
    busy = min(0.98, used if used is not None else 0.9)
    less = busy * count / (count + 1.0)
    # How long one waits grows as busy / (1 - busy) (M/M/1; Kleinrock 1975, Queueing Systems, 3.2).
    ratio = (less / (1.0 - less)) / max(1e-9, busy / (1.0 - busy))
    yield Finding(
        change=f"One more replica ({count + 1:.0f})",
        gain=queue * (1.0 - min(1.0, ratio)) / total,
        because=(
            f"A request waits {_time(queue)}, {queue / total:.0%} of its time, at {busy:.0%} use; with {count + 1:.0f}"
            f" replicas it would be {less:.0%}, and the wait about {_time(queue * ratio)}."
        ),
    )


def _routing(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    traffic = seen.traffic
    count, hits = traffic.replicas or 1.0, traffic.hit_share
    if seen.kind is not ServerKind.GATEWAY or count < 2 or not hits or hits < 0.02:
        return
    # Spread evenly, what was seen before is found at one of `count` replicas only.
    possible = min(0.95, hits * count)
    if possible <= hits:
        return
    prefill = parts.get(Part.PREFILL, 0.0)
    yield Finding(
        change="Routing by prefix: routing.policy prefix_aware",
        gain=prefill * (possible - hits) / (1.0 - hits) / total,
        because=(
            f"{hits:.0%} of the prompt tokens are found in a cache of {count:.0f} replicas; if requests are spread evenly"
            f" up to {possible:.0%} would be where their prefix is, and prefill would take"
            f" {_time(prefill * (1 - possible) / (1 - hits))} after {_time(prefill)}."
        ),
    )


def _prefill(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    distance = prefill_distance(seen)
    prefill = parts.get(Part.PREFILL, 0.0)
    if distance is None or distance.share > 0.7:
        return
    yield Finding(
        change="Free cores for the server, and larger steps: --threads, --max-num-batched-tokens",
        gain=prefill * (1.0 - max(distance.share, 0.3) / 0.7) / total,
        because=(
            f"Prefill computes {distance.rate:.0f} tokens a second, {distance.share:.0%} of the {distance.limit:.0f} that"
            " its arithmetic allows; 70% are reached where nothing stands in the way."
        ),
    )


def _decode(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    distance, model = decode_distance(seen), seen.model
    decode = parts.get(Part.DECODE, 0.0)
    if distance is None:
        return
    if distance.share < 0.6:
        yield Finding(
            change="Free memory bandwidth and cores for the server: no other load beside it, --threads",
            gain=decode * (1.0 - max(distance.share, 0.2) / 0.7) / total,
            because=(
                f"Decoding reaches {distance.rate:.1f} tokens a second, {distance.share:.0%} of the {distance.limit:.1f}"
                " that reading the weights allows; 70% are reached where nothing stands in the way."
            ),
        )
    bits = (
        8.0 * model.weight_bytes / model.parameters
        if model.weight_bytes and model.parameters
        else 0
    )
    if bits > _FOUR_BITS + 1.0:
        saved = 1.0 - _FOUR_BITS / bits
        yield Finding(
            change="Weights in 4 bits",
            gain=decode * saved * min(1.0, distance.share) / total,
            because=(
                f"A weight takes {bits:.1f} bits, and {min(1.0, distance.share):.0%} of a step is reading them; with"
                f" {_FOUR_BITS:.0f} bits {saved:.0%} less is read."
            ),
        )


def _tokenisation(
    seen: Observations, parts: Mapping[Part, float], total: float
) -> Iterator[Finding]:
    seconds = parts.get(Part.TOKENISATION, 0.0)
    if seen.probe.tokenise:
        yield Finding(
            change="Prompts as token ids, or more HTTP processes in front of the engine",
            gain=seconds / total,
            because=(
                f"The server tokenises {1.0 / seen.probe.tokenise:,.0f} tokens a second: {_time(seconds)} of a"
                f" request, {seconds / total:.0%}."
            ),
        )


def _network(seen: Observations, parts: Mapping[Part, float], total: float) -> Iterator[Finding]:
    seconds = parts.get(Part.NETWORK, 0.0)
    if seen.probe.round_trip:
        yield Finding(
            change="A shorter way: clients near the server, connections kept open",
            gain=seconds / total,
            because=f"A question that costs nothing takes {_time(seconds)} there and back, {seconds / total:.0%} of a request.",
        )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
