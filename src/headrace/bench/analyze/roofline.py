"""How far from the hardware's limit: the roofline model (Williams, Waterman, Patterson 2009, "Roofline"). Pure.

A token that is decoded alone reads every weight once, and its keys and values: memory bounds it. A prompt of many tokens uses
each weight many times: arithmetic bounds it, with two operations a weight and token.
"""

import math
from typing import NamedTuple

from headrace.bench.analyze.parts import sizes
from headrace.bench.analyze.values import Observations


class Distance(NamedTuple):
    """Tokens a second, and what the hardware would allow."""

    rate: float
    limit: float
    """Above 0."""
    batch: float
    """Sequences that were served at once."""

    @property
    def share(self) -> float:
        """Of the limit that is reached."""
        return self.rate / self.limit


class Steps(NamedTuple):
    """The time of a decoding step: `fixed` for reading the weights and `each` for every sequence. From two batch sizes."""

    fixed: float
    each: float

    def seconds(self, batch: float) -> float:
        """Of a step with so many sequences."""
        return self.fixed + self.each * batch


def is_quiet(seen: Observations) -> bool:
    """Nobody else was served: what the probe saw is the server's own speed."""
    return (seen.traffic.running or 0.0) < 0.5


def decode_distance(seen: Observations) -> Distance | None:
    """Tokens a second of all streams together, of the probe's one or of the server's traffic; None where something is not
    known.
    """
    memory, weights = seen.hardware.memory, seen.model.weight_bytes
    prompt, output = sizes(seen)
    if is_quiet(seen):
        batch, tpot = 1.0, seen.probe.tpot
    else:
        batch, decode = seen.traffic.running or 1.0, seen.traffic.decode
        tpot = decode / (output - 1.0) if decode and output > 1.0 else None
    if not (tpot and memory and weights):
        return None
    read = weights + (seen.model.kv_bytes or 0.0) * batch * (prompt + output / 2.0)
    return _distance(batch / tpot, batch * memory / read, batch)


def prefill_distance(seen: Observations) -> Distance | None:
    """Of one long prompt on a server that does nothing else."""
    each, compute, parameters = seen.probe.prefill, seen.hardware.compute, seen.model.parameters
    if not (each and compute and parameters) or not is_quiet(seen):
        return None
    return _distance(1.0 / each, compute / (2.0 * parameters), 1.0)


def _distance(rate: float, limit: float, batch: float) -> Distance | None:
    """None where the figures are so far from any hardware that the quotient has no digits left."""
    return Distance(rate, limit, batch) if 0.0 < limit < math.inf and rate < math.inf else None


def steps_of(seen: Observations) -> Steps | None:
    """None where the probe had no batch, or was not alone."""
    probe = seen.probe
    if not (probe.tpot and probe.batch_tpot) or probe.batch < 2 or not is_quiet(seen):
        return None
    each = max(0.0, probe.batch_tpot - probe.tpot) / (probe.batch - 1)
    return Steps(max(0.0, probe.tpot - each), each)
