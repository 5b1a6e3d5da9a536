"""The longest prefix of a prompt whose keys and values are at hand, in every KV group at once."""

from collections.abc import Sequence

from msgspec import Struct

from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import GIVEN_BACK


class PrefixMatch(Struct, frozen=True):
    """A usable prefix of `num_blocks` full blocks. Valid until the ledger changes."""

    num_blocks: int
    tables: tuple[list[int], ...]
    """Per group: its first `num_blocks` entries; GIVEN_BACK where the window needs none."""
    num_idle: tuple[int, ...]
    """Per group: how many of them nobody holds yet (a hit takes them out of the free capacity)."""
    is_pending: bool
    """The prefix would be longer if blocks that are being loaded had landed."""


def first_needed(position: int, window: int, block_size: int) -> int:
    """First block that the query at `position` reads: keys (position - window, position]."""
    if window == 0 or position < window:
        return 0
    return (position - window + 1) // block_size


def longest_match(
    pools: Sequence[BlockPool], windows: Sequence[int], block_size: int, hashes: Sequence[bytes]
) -> PrefixMatch:
    """The longest usable prefix of `hashes`.

    Length n is usable when every group holds the blocks that the query at position n * block_size
    reads. A full group needs all n blocks. A windowed group needs the last ones only, so its older
    blocks may be gone; `runs` counts how many blocks up to here it has in one piece.
    """
    best = 0
    is_pending = False
    runs = [0] * len(pools)
    for index, block_hash in enumerate(hashes):
        is_reachable = True
        is_usable = True
        for group, pool in enumerate(pools):
            block = pool.cache.block_of.get(block_hash)
            if block is not None and block in pool.pending:
                is_pending = True
                block = None
            runs[group] = 0 if block is None else runs[group] + 1
            if windows[group] == 0:
                is_reachable = is_reachable and block is not None
            else:
                needed = (
                    index + 1 - first_needed((index + 1) * block_size, windows[group], block_size)
                )
                is_usable = is_usable and runs[group] >= needed
        if not is_reachable:
            break
        if is_usable:
            best = index + 1
    return _describe(pools, windows, block_size, hashes[:best], is_pending=is_pending)


def _describe(
    pools: Sequence[BlockPool],
    windows: Sequence[int],
    block_size: int,
    hashes: Sequence[bytes],
    *,
    is_pending: bool,
) -> PrefixMatch:
    tables: list[list[int]] = []
    num_idle: list[int] = []
    for pool, window in zip(pools, windows, strict=True):
        first = first_needed(len(hashes) * block_size, window, block_size)
        table = [GIVEN_BACK] * first
        table.extend(pool.cache.block_of[block_hash] for block_hash in hashes[first:])
        tables.append(table)
        num_idle.append(sum(pool.refs[block] == 0 for block in table[first:]))
    return PrefixMatch(len(hashes), tuple(tables), tuple(num_idle), is_pending)
