"""The longest prefix of a prompt whose keys and values are at hand, in every KV group at once."""

from collections.abc import Callable, Sequence

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
    is_pending = False

    def has(group: int, block_hash: bytes) -> bool:
        nonlocal is_pending
        block = pools[group].cache.block_of.get(block_hash)
        if block is None:
            return False
        if block in pools[group].pending:
            is_pending = True
            return False
        return True

    best = _usable_length(windows, block_size, hashes, has)
    return _describe(pools, windows, block_size, hashes[:best], is_pending=is_pending)


def missing_blocks(
    pools: Sequence[BlockPool],
    windows: Sequence[int],
    block_size: int,
    hashes: Sequence[bytes],
    holds: Callable[[int, bytes], bool],
) -> list[tuple[int, int]]:
    """(group, index in `hashes`), ascending by index, of blocks that would make the longest usable prefix.

    They are not in the pools, and `holds` (group, hash) says that they are elsewhere.
    """

    def has(group: int, block_hash: bytes) -> bool:
        return block_hash in pools[group].cache.block_of or holds(group, block_hash)

    length = _usable_length(windows, block_size, hashes, has)
    return [
        (group, index)
        for index in range(length)
        for group, window in enumerate(windows)
        if index >= first_needed(length * block_size, window, block_size)
        and hashes[index] not in pools[group].cache.block_of
    ]


def shared_table(table: Sequence[int], first: int, last: int) -> list[int] | None:
    """Entries [0, last) for a sequence that reads from `first` on; None when one of those was given back."""
    kept = list(table[first:last])
    return None if GIVEN_BACK in kept else [GIVEN_BACK] * first + kept


def _usable_length(
    windows: Sequence[int],
    block_size: int,
    hashes: Sequence[bytes],
    has: Callable[[int, bytes], bool],
) -> int:
    best = 0
    runs = [0] * len(windows)
    for index, block_hash in enumerate(hashes):
        is_reachable = True
        is_usable = True
        for group, window in enumerate(windows):
            is_there = has(group, block_hash)
            runs[group] = runs[group] + 1 if is_there else 0
            if window == 0:
                is_reachable = is_reachable and is_there
            else:
                needed = index + 1 - first_needed((index + 1) * block_size, window, block_size)
                is_usable = is_usable and runs[group] >= needed
        if not is_reachable:
            break
        if is_usable:
            best = index + 1
    return best


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
