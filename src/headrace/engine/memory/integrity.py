"""The invariant of the ledger, as a function."""

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.core.errors import IntegrityError
from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import GIVEN_BACK, SequenceBlocks


def check(
    pools: Sequence[BlockPool], promised: Sequence[int], sequences: Iterable[SequenceBlocks]
) -> None:
    """Raise IntegrityError unless, in every pool:

    - `free + held + cached + pending = total`, each block in exactly one state;
    - a block's reference count is the number of table entries that name it;
    - names and blocks match one to one, idle blocks have a name, free ones none;
    - promises add up and are covered by available blocks.
    """
    opened = tuple(sequences)
    for group, pool in enumerate(pools):
        _check_states(group, pool)
        _check_references(group, pool, opened)
        _check_names(group, pool)
        total = sum(blocks.promised[group] for blocks in opened)
        _require(total == promised[group], group, f"{promised[group]} blocks promised, {total} due")
        _require(
            total <= pool.num_available,
            group,
            f"{total} blocks promised, {pool.num_available} available",
        )
    for blocks in opened:
        lengths = {len(table) for table in blocks.tables}
        _require(len(lengths) == 1, 0, f"tables of one sequence have lengths {sorted(lengths)}")
        _require(
            blocks.num_committed <= blocks.capacity, 0, "a sequence has more positions than blocks"
        )


def _check_states(group: int, pool: BlockPool) -> None:
    idle = pool.cache.idle_blocks()
    held = [block for block, refs in enumerate(pool.refs) if refs > 0]
    _require(len(idle) == pool.cache.num_idle, group, "the LRU list and its count differ")
    _require(len(held) == pool.num_held, group, f"{len(held)} blocks held, {pool.num_held} counted")
    states = Counter(pool.free) + Counter(idle) + Counter(held) + Counter(pool.pending)
    total = len(pool.free) + len(idle) + len(held) + len(pool.pending)
    _require(
        total == pool.num_blocks and len(states) == pool.num_blocks,
        group,
        f"free {len(pool.free)} + held {len(held)} + cached {len(idle)} + pending "
        f"{len(pool.pending)} is not {pool.num_blocks}, or a block is in two states",
    )


def _check_references(group: int, pool: BlockPool, opened: Sequence[SequenceBlocks]) -> None:
    counts: Counter[int] = Counter()
    for blocks in opened:
        counts.update(block for block in blocks.tables[group] if block != GIVEN_BACK)
    for block, refs in enumerate(pool.refs):
        _require(
            counts[block] == refs,
            group,
            f"block {block} has {refs} references and {counts[block]} users",
        )


def _check_names(group: int, pool: BlockPool) -> None:
    named = {block: name for block, name in enumerate(pool.cache.hash_of) if name is not None}
    _require(
        {name: block for block, name in named.items()} == pool.cache.block_of,
        group,
        "names and blocks do not match",
    )
    _require(all(b in named for b in pool.cache.idle_blocks()), group, "an idle block has no name")
    _require(not any(b in named for b in pool.free), group, "a free block has a name")


def _require(condition: bool, group: int, sentence: str) -> None:
    if not condition:
        raise IntegrityError(f"KV group {group}: {sentence}.")
