"""What a sequence gives back of its past while it runs: blocks behind a window, and those its KV policy drops."""

from collections.abc import Sequence

from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import GIVEN_BACK, SequenceBlocks
from headrace.engine.memory.eviction import blocks_to_drop, num_kept
from headrace.engine.memory.matching import first_needed
from headrace.engine.memory.promises import Promises


class Retention:
    """Changes tables and pools of the ledger that it belongs to."""

    __slots__ = ("_block_size", "_pools", "_promises", "_windows")

    def __init__(
        self,
        pools: Sequence[BlockPool],
        windows: Sequence[int],
        block_size: int,
        promises: Promises,
    ) -> None:
        self._pools = pools
        self._windows = windows
        self._block_size = block_size
        self._promises = promises

    def slide(self, blocks: SequenceBlocks) -> bool:
        """Give back what no later query reads (the next one is at `num_committed`); whether something was."""
        has_released = False
        for group, window in enumerate(self._windows):
            if window == 0:
                continue
            first = blocks.first_kept[group]
            keep = first_needed(blocks.num_committed, window, self._block_size)
            if keep <= first:
                continue
            freed = self._release_entries(blocks, group, first, keep)
            has_released = True
            blocks.first_kept[group] = keep
            if blocks.promise_end:
                self._promises.top_up(blocks, group, freed)
        return has_released

    def drop(self, blocks: SequenceBlocks, first: int, last: int) -> bool:
        """Give back table entries [first, last) of every group; whether something was there."""
        has_released = False
        for group, table in enumerate(blocks.tables):
            if any(block != GIVEN_BACK for block in table[first:last]):
                self._release_entries(blocks, group, first, min(last, len(table)))
                has_released = True
        return has_released

    def evict(
        self, blocks: SequenceBlocks, mass: Sequence[float], num_tokens: int, num_sinks: int
    ) -> bool:
        """Keep `num_tokens` of the full, committed blocks of the group without a window; whether some went."""
        if 0 not in self._windows:
            return False
        size, group = self._block_size, self._windows.index(0)
        found = blocks_to_drop(
            blocks.tables[group],
            mass,
            blocks.num_committed // size,
            -(-num_sinks // size),
            num_kept(num_tokens, num_sinks, size),
        )
        for index in found:
            self._release_entries(blocks, group, index, index + 1)
        return bool(found)

    def next_turn(self, blocks: SequenceBlocks) -> int:
        """Committed position from which there is something to publish or to give back."""
        size = self._block_size
        turn = (blocks.num_committed // size + 1) * size
        for group, window in enumerate(self._windows):
            if window:
                turn = min(turn, (blocks.first_kept[group] + 1) * size + window - 1)
        return turn

    def _release_entries(self, blocks: SequenceBlocks, group: int, first: int, last: int) -> int:
        """Give back table entries [first, last); how many blocks became available."""
        table, pool = blocks.tables[group], self._pools[group]
        freed = 0
        for index in range(last - 1, first - 1, -1):
            if table[index] != GIVEN_BACK:
                freed += pool.give_back(table[index])
                table[index] = GIVEN_BACK
        blocks.writes.append((group, first, [GIVEN_BACK] * (last - first)))
        return freed
