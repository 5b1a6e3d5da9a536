"""Giving names to full, committed blocks, and telling subscribers."""

from collections import deque
from collections.abc import Sequence

from headrace.core.step import BlockTransfer
from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import GIVEN_BACK, SequenceBlocks
from headrace.engine.memory.events import KVEventLog
from headrace.engine.memory.hashing import HashChain


class Publisher:
    """Offers a sequence's full blocks to the prefix cache of every group.

    Events speak of one group, `reported`: a hash is one content, whatever number of groups hold it.
    """

    __slots__ = ("_block_size", "_log", "_pools", "_reported", "_stores")

    def __init__(
        self,
        pools: Sequence[BlockPool],
        reported: int,
        block_size: int,
        log: KVEventLog | None,
        *,
        has_tier: bool,
    ) -> None:
        """`has_tier`: what is published goes to the tier below too."""
        self._pools = pools
        self._reported = reported
        self._block_size = block_size
        self._log = log
        # The oldest are forgotten first: what was not stored in time is evicted by then, or soon.
        num_blocks = sum(pool.num_blocks for pool in pools)
        self._stores: deque[BlockTransfer] | None = deque(maxlen=num_blocks) if has_tier else None

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

    def take_stores(self, limit: int) -> tuple[BlockTransfer, ...]:
        """Up to `limit` blocks to store in the next plan; they hold what they are named after until then."""
        found: list[BlockTransfer] = []
        while self._stores and len(found) < limit:
            store = self._stores.popleft()
            if self._pools[store.group].cache.hash_of[store.block] == store.key:
                found.append(store)
        return tuple(found)

    @property
    def has_stores(self) -> bool:
        """Something waits to be stored."""
        return bool(self._stores)

    def report_loaded(
        self, group: int, block_hash: bytes, parent: bytes | None, token_ids: list[int]
    ) -> None:
        """A block came from the tier below and can be found."""
        if self._log is not None and group == self._reported:
            self._log.stored([block_hash], parent, token_ids, self._block_size)

    def _name(self, blocks: SequenceBlocks, index: int, block_hash: bytes) -> bool:
        """Whether this block is news for subscribers."""
        is_news = False
        for group, pool in enumerate(self._pools):
            block = blocks.tables[group][index]
            if block != GIVEN_BACK and pool.cache.name(block, block_hash):
                is_news = is_news or group == self._reported
                if self._stores is not None:
                    self._stores.append(BlockTransfer(group, block, block_hash))
        return is_news

    def _report(self, chain: HashChain, first: int, last: int, token_ids: Sequence[int]) -> None:
        if self._log is None or first >= last:
            return
        size = self._block_size
        parent = chain.hashes[first - 1] if first else None
        tokens = list(token_ids[first * size : last * size])
        self._log.stored(chain.hashes[first:last], parent, tokens, size, chain.origin)
