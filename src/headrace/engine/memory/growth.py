"""Room for the positions that a sequence writes next: new blocks, and copies of shared ones."""

from collections.abc import Sequence

from headrace.core.step import BlockCopy
from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import SequenceBlocks
from headrace.engine.memory.promises import Promises


class Growth:
    """Changes tables and pools of the ledger that it belongs to."""

    __slots__ = ("_block_size", "_pools", "_promises", "copies")

    def __init__(self, pools: Sequence[BlockPool], block_size: int, promises: Promises) -> None:
        self._pools = pools
        self._block_size = block_size
        self._promises = promises
        self.copies: list[BlockCopy] = []
        """To be done, in this order, before the rows that write."""

    def affordable(self, blocks: SequenceBlocks, start: int, end: int) -> int:
        """The end of what can be written from `start`; at most `start` when nothing can."""
        size = self._block_size
        for group, pool in enumerate(self._pools):
            table = blocks.tables[group]
            spare = self._promises.spare(group, blocks)
            if blocks.may_share_writes:
                touched = table[start // size : -(-end // size)]
                spare -= sum(not pool.is_writable(block) for block in touched)
            if spare < 0:
                return start
            end = min(end, (len(table) + spare) * size)
        return end

    def unshare(self, blocks: SequenceBlocks, start: int, end: int) -> None:
        """Copies in the place of blocks that would be written and that others read."""
        size = self._block_size
        for group, pool in enumerate(self._pools):
            table = blocks.tables[group]
            for index in range(start // size, min(len(table), -(-end // size))):
                source = table[index]
                if pool.is_writable(source):
                    continue
                target = pool.take()
                self._promises.use(blocks, group, 1)
                self.copies.append(BlockCopy(group, source, target))
                pool.give_back(source)
                table[index] = target
                blocks.writes.append((group, index, [target]))
        blocks.may_share_writes = False

    def grow(self, blocks: SequenceBlocks, end: int) -> None:
        """Blocks for the positions up to `end`."""
        count = -(-end // self._block_size) - len(blocks.tables[0])
        for group, pool in enumerate(self._pools):
            table = blocks.tables[group]
            taken = [pool.take() for _ in range(count)]
            self._promises.use(blocks, group, count)
            blocks.writes.append((group, len(table), taken))
            table.extend(taken)
        blocks.capacity = len(blocks.tables[0]) * self._block_size
