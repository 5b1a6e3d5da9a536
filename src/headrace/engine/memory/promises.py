"""Blocks set aside for prompts that were let in, so that every one of them can be finished.

A promise takes no block; it takes capacity. A sequence that grows beyond its own promise may only use
what nobody else was promised. Windowed groups are promised their peak, not the whole prompt: blocks
behind the window come back while the prompt runs, and the promise is topped up with them.

Always: promised[g] = sum over sequences <= pools[g].num_available.
"""

from collections.abc import Sequence

from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import SequenceBlocks


class Promises:
    """Totals per KV group; each sequence's share is kept in its `SequenceBlocks`."""

    __slots__ = ("_block_size", "_peaks", "_pools", "totals")

    def __init__(
        self,
        pools: Sequence[BlockPool],
        windows: Sequence[int],
        block_size: int,
        max_uncommitted_tokens: int,
    ) -> None:
        self._pools = pools
        self._block_size = block_size
        self.totals = [0] * len(pools)
        self._peaks = [
            _peak(pool.num_blocks, window, block_size, max_uncommitted_tokens)
            for pool, window in zip(pools, windows, strict=True)
        ]

    def needs(self, group: int, num_kept: int, num_known: int, num_tokens: int) -> int:
        """Blocks to promise for `num_tokens` positions.

        The table has `num_known` entries already, of which `num_kept` are held.
        """
        missing = -(-num_tokens // self._block_size) - num_known
        return max(0, min(missing, self._peaks[group] - num_kept))

    def spare(self, group: int, blocks: SequenceBlocks | None = None) -> int:
        """Blocks that this sequence (or a new one) may take without touching others' promises."""
        own = 0 if blocks is None else blocks.promised[group]
        return self._pools[group].num_available - (self.totals[group] - own)

    def give(self, blocks: SequenceBlocks, group: int, count: int) -> None:
        """Set `count` more blocks aside."""
        blocks.promised[group] += count
        self.totals[group] += count

    def use(self, blocks: SequenceBlocks, group: int, count: int) -> None:
        """The sequence took `count` blocks: its promise shrinks, down to nothing."""
        used = min(count, blocks.promised[group])
        blocks.promised[group] -= used
        self.totals[group] -= used

    def top_up(self, blocks: SequenceBlocks, group: int, num_freed: int) -> None:
        """`num_freed` blocks behind the window came back: promise them again as far as needed."""
        num_known = len(blocks.tables[group])
        num_kept = num_known - blocks.first_kept[group]
        target = self.needs(group, num_kept, num_known, blocks.promise_end)
        wanted = min(num_freed, target - blocks.promised[group])
        if wanted > 0:
            self.give(blocks, group, wanted)

    def cancel(self, blocks: SequenceBlocks) -> bool:
        """Nothing is set aside for this sequence any more; True when something was."""
        had_any = False
        for group, count in enumerate(blocks.promised):
            if count:
                self.totals[group] -= count
                blocks.promised[group] = 0
                had_any = True
        blocks.promise_end = 0
        return had_any


def _peak(num_blocks: int, window: int, block_size: int, max_uncommitted_tokens: int) -> int:
    """Most blocks of one group that a sequence can use at once.

    m tokens in a row touch at most ceil((m - 1) / P) + 1 blocks of P. A windowed group holds the
    window - 1 tokens before the next position and those that are being computed. A pool that is smaller
    makes do with all it has, as long as it can hold a window: rows are then shorter.
    """
    if window == 0 or max_uncommitted_tokens == 0 or num_blocks < blocks_of(window, block_size):
        return _NO_BOUND
    return min(num_blocks, blocks_of(window - 1 + max_uncommitted_tokens, block_size))


def blocks_of(num_tokens: int, block_size: int) -> int:
    """Most blocks that `num_tokens` (at least 1) consecutive tokens touch."""
    return -(-(num_tokens - 1) // block_size) + 1


_NO_BOUND = 2**62
