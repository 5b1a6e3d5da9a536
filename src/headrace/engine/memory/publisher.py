"""Giving names to full, committed blocks, and telling subscribers."""

from collections.abc import Sequence

from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import GIVEN_BACK, SequenceBlocks
from headrace.engine.memory.events import KVEventLog
from headrace.engine.memory.hashing import HashChain


class Publisher:
    """Offers a sequence's full blocks to the prefix cache of every group.

    Events speak of one group, `reported`: a hash is one content, whatever number of groups hold it.
    """

    __slots__ = ("_block_size", "_log", "_pools", "_reported")

    def __init__(
        self, pools: Sequence[BlockPool], reported: int, block_size: int, log: KVEventLog | None
    ) -> None:
        self._pools = pools
        self._reported = reported
        self._block_size = block_size
        self._log = log

    def publish(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> None:
        """Name every full block of [0, num_committed) that was not offered before."""
        chain = blocks.chain
        if chain is None or blocks.has_dropped:
            return
        full = blocks.num_committed // self._block_size
        chain.extend(token_ids, full)
        run_start = blocks.num_published
        for index in range(blocks.num_published, full):
            if not self._name(blocks, index, chain.hashes[index]):
                self._report(chain, run_start, index, token_ids)
                run_start = index + 1
        self._report(chain, run_start, full, token_ids)
        blocks.num_published = max(full, blocks.num_published)

    def _name(self, blocks: SequenceBlocks, index: int, block_hash: bytes) -> bool:
        """Whether this block is news for subscribers."""
        is_news = False
        for group, pool in enumerate(self._pools):
            block = blocks.tables[group][index]
            if block != GIVEN_BACK and pool.cache.name(block, block_hash):
                is_news = is_news or group == self._reported
        return is_news

    def _report(self, chain: HashChain, first: int, last: int, token_ids: Sequence[int]) -> None:
        if self._log is None or first >= last:
            return
        size = self._block_size
        parent = chain.hashes[first - 1] if first else None
        tokens = list(token_ids[first * size : last * size])
        self._log.stored(chain.hashes[first:last], parent, tokens, size)
