"""Pools that serve one model in one role together, and how what they need is shared out among them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from headrace.config.fleet.pools import PoolConfig
from headrace.core.stats import ReplicaRole


class GroupKey(NamedTuple):
    """What pools must have in common to stand for each other."""

    model: str
    role: ReplicaRole
    version: str


class Holding(Struct, frozen=True, kw_only=True):
    """One pool and its replicas."""

    pool: PoolConfig
    num_ready: int = 0
    num_pending: int = 0
    num_warm: int = 0
    surplus: int = 0
    """Of the ready and pending ones, those that are only there while others are replaced."""
    override: int | None = None
    """What an operator has set."""

    @property
    def current(self) -> int:
        """Ready or pending, without surplus."""
        return max(0, self.num_ready + self.num_pending - self.surplus)

    @property
    def least(self) -> int:
        """Fewest that it may have."""
        return self.pool.min_replicas if self.override is None else self.override

    @property
    def most(self) -> int:
        """Most that it may have."""
        return self.pool.max_replicas if self.override is None else self.override


def key_of(pool: PoolConfig) -> GroupKey:
    """The group that a pool is in. Names of its model are the operator's: two spellings are two groups."""
    return GroupKey(pool.model, pool.role, pool.version)


def grouped(pools: Iterable[PoolConfig]) -> dict[GroupKey, tuple[PoolConfig, ...]]:
    """All groups; in each, the cheapest pool first: its settings count for the group."""
    found: dict[GroupKey, list[PoolConfig]] = {}
    for pool in pools:
        found.setdefault(key_of(pool), []).append(pool)
    return {
        key: tuple(sorted(members, key=lambda pool: (pool.hourly_cost, pool.name)))
        for key, members in found.items()
    }


def shared_out(total: int, holdings: Sequence[Holding]) -> dict[str, int]:
    """`total` replicas among pools, by name: more go to the cheapest that has room, fewer come from the dearest. What is
    there stays where it is: a replica is not moved to save money.
    """
    by_cost = sorted(holdings, key=lambda holding: (holding.pool.hourly_cost, holding.pool.name))
    counts = {h.pool.name: min(max(h.current, h.least), h.most) for h in by_cost}
    missing = total - sum(counts.values())
    for holding in by_cost if missing > 0 else ():
        more = min(missing, holding.most - counts[holding.pool.name])
        counts[holding.pool.name] += more
        missing -= more
    for holding in reversed(by_cost) if missing < 0 else ():
        fewer = min(-missing, counts[holding.pool.name] - holding.least)
        counts[holding.pool.name] -= fewer
        missing += fewer
    return counts
