"""Which CPUs a replica is tied to. A decision; whoever asks does it."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence


def available() -> tuple[int, ...]:
    """CPUs that this process may use, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def choose(cpus: Sequence[int], taken: Iterable[Collection[int]], count: int) -> tuple[int, ...]:
    """`count` of `cpus`, ascending: those that fewest others are tied to. All, where there are not more than that."""
    users = Counter(cpu for others in taken for cpu in others)
    ordered = sorted(cpus, key=lambda cpu: (users[cpu], cpu))
    return tuple(sorted(ordered[: max(0, count)]))
