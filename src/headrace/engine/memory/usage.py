"""How many blocks are in which state."""

from collections.abc import Sequence

from msgspec import Struct

from headrace.engine.memory.block_pool import BlockPool


class LedgerUsage(Struct, frozen=True, kw_only=True):
    """Blocks by state, summed over the KV groups, and prefix-cache totals in tokens."""

    total: int
    free: int
    held: int
    cached: int
    pending: int
    queried_tokens: int
    """Tokens of sequences that were opened with the prefix cache on."""
    hit_tokens: int
    """Tokens of those that were found."""


def count(pools: Sequence[BlockPool], *, queried_tokens: int, hit_tokens: int) -> LedgerUsage:
    """The pools' blocks by state."""
    return LedgerUsage(
        total=sum(pool.num_blocks for pool in pools),
        free=sum(len(pool.free) for pool in pools),
        held=sum(pool.num_held for pool in pools),
        cached=sum(pool.cache.num_idle for pool in pools),
        pending=sum(len(pool.pending) for pool in pools),
        queried_tokens=queried_tokens,
        hit_tokens=hit_tokens,
    )
