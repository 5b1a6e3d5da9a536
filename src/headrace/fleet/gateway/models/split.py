"""Keys divided among arms in proportion to weights, each key always to the same one.

Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005): when weights change, or an arm is switched off, only as many
keys move as must.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import log

from headrace.config.fleet.models import Arm


def assign(rule: str, arms: Sequence[Arm], key: str, draw: float) -> Arm:
    """The arm of a key; without a key that of the draw. At least one arm has a weight above 0.

    Splits of different rules are independent of each other.
    """
    if not key:
        return _drawn(arms, draw)
    return max(arms, key=lambda arm: _score(rule, arm, key))


def _score(rule: str, arm: Arm, key: str) -> float:
    if arm.weight <= 0:
        return -1.0
    text = "\0".join((rule, arm.name, key)).encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    return arm.weight / -log(((number >> 11) + 0.5) / (1 << 53))


def _drawn(arms: Sequence[Arm], draw: float) -> Arm:
    left = draw * sum(arm.weight for arm in arms)
    for arm in arms:
        left -= arm.weight
        if left < 0:
            return arm
    return next(arm for arm in reversed(arms) if arm.weight > 0)
