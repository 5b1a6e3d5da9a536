"""Inverse frequencies of rotary embeddings, in double precision."""

import math

from headrace.modeling.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_size: int, max_context: int) -> list[float]:
    """One angle per position step for each of the `rotary_size / 2` pairs of a head.

    `max_context` is what is served: longrope has one set of divisors for contexts up to the original
    one and another beyond. The choice is made once, not per request, so that cached keys stay valid.
    """
    size = rope.rotary_size or head_size
    if rope.kind == "none":
        return [0.0] * (size // 2)
    frequencies = [rope.theta ** (-2.0 * i / size) for i in range(size // 2)]
    if rope.kind == "linear":
        frequencies = [f / rope.factor for f in frequencies]
    elif rope.kind == "llama3":
        frequencies = [_llama3(f, rope) for f in frequencies]
    elif rope.kind == "yarn":
        frequencies = _yarn(frequencies, rope, size)
    divisors = rope.frequency_factors
    if rope.long_frequency_factors and max_context > rope.original_context:
        divisors = rope.long_frequency_factors
    if divisors:
        frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    return frequencies


def _llama3(frequency: float, rope: RopeSpec) -> float:
    """Llama 3.1: slow frequencies are divided by the factor, fast ones kept, those between blended."""
    turns = rope.original_context * frequency / (2 * math.pi)  # over the original context
    if turns > rope.high_freq_factor:
        return frequency
    if turns < rope.low_freq_factor:
        return frequency / rope.factor
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - smooth) * frequency / rope.factor + smooth * frequency


def _yarn(frequencies: list[float], rope: RopeSpec, size: int) -> list[float]:
    """YaRN (arXiv 2309.00071): a linear ramp over the index of the frequency."""

    def index_of(turns: float) -> float:
        """Which frequency turns this often over the original context."""
        return (
            size
            * math.log(rope.original_context / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    span = high - low if high != low else 0.001  # the published code avoids a division by zero so
    ramps = [min(max((i - low) / span, 0.0), 1.0) for i in range(len(frequencies))]
    return [
        f / rope.factor * ramp + f * (1 - ramp) for f, ramp in zip(frequencies, ramps, strict=True)
    ]
