"""Which replicas of a pool are up to date: a digest of everything that a replica is started with."""

import hashlib
from typing import Final

import msgspec

from headrace.config.fleet.pools import PoolConfig

#: What says how many there are and how they are used, and not what they are: changed without replacing any.
_OUTSIDE: Final = frozenset(
    {
        "name", "min_replicas", "max_replicas", "warm_replicas", "capabilities", "labels", "price",
        "hourly_cost",
    }
)  # fmt: skip


def revision_of(pool: PoolConfig) -> str:
    """12 hexadecimal digits. Fields at their defaults do not count, so that a release which adds one replaces nothing."""
    default = PoolConfig(name="default", model="default")
    told = {
        name: getattr(pool, name)
        for name in pool.__struct_fields__
        if name not in _OUTSIDE and getattr(pool, name) != getattr(default, name)
    }
    told["model"] = pool.model
    data = msgspec.json.encode(told, order="deterministic")
    return hashlib.blake2b(data, digest_size=6).hexdigest()
