"""The KV ledger: who holds which block. Integers only; keys and values live in the executor.

Life of a sequence: `match` (what is cached), `can_reserve` (does its prompt fit), `open` or `fork`,
then per step `reserve` (room for the step's positions) and `commit` (they are final), at last `release`.

Why a block may be reused at once. Plans run in the order in which they were made. A block that is
given back while plans are in flight is written again only by a later plan, so the plans that still read
or write it for its old owner have run by then. Published blocks hold committed positions only, and a
plan in flight writes only at positions beyond those, so it never changes what the cache names.
"""

from collections.abc import Callable, Sequence

from headrace.core.errors import IntegrityError
from headrace.core.step import BlockCopy, BlockTransfer
from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.block_table import GIVEN_BACK, SequenceBlocks
from headrace.engine.memory.events import KVEvent, KVEventLog
from headrace.engine.memory.growth import Growth
from headrace.engine.memory.hashing import HashChain, MediaSpan, Origin, RootKey, root_hash
from headrace.engine.memory.integrity import check
from headrace.engine.memory.matching import (
    PrefixMatch,
    first_needed,
    longest_match,
    missing_blocks,
    shared_table,
)
from headrace.engine.memory.promises import Promises, blocks_of
from headrace.engine.memory.publisher import Publisher
from headrace.engine.memory.retention import Retention
from headrace.engine.memory.usage import LedgerUsage, count

#: Blocks that one plan stores in the tier below: each takes the time of a copy.
MAX_STORES = 64


class KVLedger:
    """Blocks, tables, reference counts, names and promises of all KV groups of one engine."""

    def __init__(
        self,
        num_blocks: tuple[int, ...],
        block_size: int,
        windows: tuple[int, ...],
        *,
        key: RootKey,
        prefix_cache: bool = True,
        max_uncommitted_tokens: int = 0,
        record_events: bool = False,
        has_tier: bool = False,
    ) -> None:
        """`num_blocks[g]` and `windows[g]` (0: all tokens) describe KV group g.

        `max_uncommitted_tokens` bounds the tokens of one sequence that may be planned and not yet
        committed (token budget times plans in flight); 0 means no bound (unchunked prefill).
        `has_tier`: published blocks are to be stored in a tier below (`take_stores`).
        """
        if not num_blocks or len(num_blocks) != len(windows):
            raise ValueError("A ledger needs one window per KV group and at least one group.")
        if min(num_blocks) < 1 or block_size < 1 or min(windows) < 0 or max_uncommitted_tokens < 0:
            raise ValueError("Block counts and the block size are positive, windows not negative.")
        self.block_size = block_size
        self.has_prefix_cache = prefix_cache
        self.has_tier = has_tier
        self.num_releases = 0
        """Grows whenever capacity came back: a request that did not fit need not ask before."""
        self.num_landed = 0
        """Grows whenever the load of a block is over, or given up."""
        self._windows = windows
        self._key = key
        self._log = KVEventLog() if record_events else None
        # Events speak of the first group that keeps all tokens: it decides how long hits are.
        reported = windows.index(0) if 0 in windows else 0
        self._pools = tuple(
            BlockPool(count, self._log if group == reported else None)
            for group, count in enumerate(num_blocks)
        )
        self._publisher = Publisher(self._pools, reported, block_size, self._log, has_tier=has_tier)
        self._promises = Promises(self._pools, windows, block_size, max_uncommitted_tokens)
        self._retention = Retention(self._pools, windows, block_size, self._promises)
        self._growth = Growth(self._pools, block_size, self._promises)
        self._is_bounded = max_uncommitted_tokens > 0
        self._open: set[SequenceBlocks] = set()
        self._queried = 0
        self._hit = 0

    # ---- questions -----------------------------------------------------------------------------

    @property
    def max_sequence_tokens(self) -> int:
        """Positions that one sequence can have when it is alone."""
        limit = 2**62
        for pool, window in zip(self._pools, self._windows, strict=True):
            is_enough = window and pool.num_blocks >= blocks_of(window, self.block_size)
            if not is_enough or not self._is_bounded:
                limit = min(limit, pool.num_blocks * self.block_size)
        return limit

    @property
    def smallest_group(self) -> int:
        """Blocks of the smallest KV group."""
        return min(pool.num_blocks for pool in self._pools)

    def chain(
        self, adapter: str | None, salt: bytes, media: tuple[MediaSpan, ...] = ()
    ) -> HashChain | None:
        """Names of a new sequence's blocks; None when the prefix cache is off."""
        if not self.has_prefix_cache:
            return None
        return HashChain(
            root_hash(self._key, self.block_size, adapter, salt),
            self.block_size,
            media,
            Origin(adapter, salt),
        )

    def match(self, chain: HashChain | None, token_ids: Sequence[int]) -> PrefixMatch:
        """What is cached of these tokens. The last one is always recomputed: its logits are needed."""
        hashes = self._names(chain, token_ids)
        return longest_match(self._pools, self._windows, self.block_size, hashes)

    def missing(
        self,
        chain: HashChain,
        token_ids: Sequence[int],
        holds: Callable[[int, bytes], bool],
    ) -> list[tuple[int, int]]:
        """As `missing_blocks`: what would have to be loaded for the longest match of these tokens."""
        hashes = self._names(chain, token_ids)
        return missing_blocks(self._pools, self._windows, self.block_size, hashes, holds)

    def touch(self, match: PrefixMatch) -> None:
        """The matched blocks are the last to be evicted now."""
        for pool, table in zip(self._pools, match.tables, strict=True):
            kept = [block for block in table if block != GIVEN_BACK]
            for block in kept:
                pool.share(block)
            for block in reversed(kept):
                pool.give_back(block)

    def can_reserve(self, match: PrefixMatch, num_tokens: int, margin: int = 0) -> bool:
        """Whether `open` may promise `num_tokens` positions and leave `margin` blocks per group."""
        for group in range(len(self._pools)):
            kept = len(match.tables[group]) - match.tables[group].count(GIVEN_BACK)
            needed = self._promises.needs(group, kept, match.num_blocks, num_tokens)
            if match.num_idle[group] + needed + margin > self._promises.spare(group):
                return False
        return True

    def usage(self) -> LedgerUsage:
        """Counts now."""
        return count(self._pools, queried_tokens=self._queried, hit_tokens=self._hit)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless everything adds up. O(blocks)."""
        check(self._pools, self._promises.totals, self._open)

    # ---- a sequence's life ---------------------------------------------------------------------

    def open(self, match: PrefixMatch, chain: HashChain | None, num_tokens: int) -> SequenceBlocks:
        """Hold the matched blocks and promise room for `num_tokens`; after `can_reserve` said yes."""
        for pool, table in zip(self._pools, match.tables, strict=True):
            for block in table:
                if block != GIVEN_BACK:
                    pool.share(block)
        blocks = SequenceBlocks([list(table) for table in match.tables], chain, self.block_size)
        blocks.num_committed = blocks.num_cached = match.num_blocks * self.block_size
        blocks.num_published = match.num_blocks
        if chain is not None:
            self._queried += num_tokens
            self._hit += blocks.num_cached
        self._begin(blocks, num_tokens)
        return blocks

    def fork(
        self,
        source: SequenceBlocks,
        num_tokens: int,
        margin: int = 0,
        *,
        recompute_last: bool = True,
    ) -> SequenceBlocks | None:
        """A sequence that shares every block of the source's first `num_tokens` positions.

        Its last shared position is recomputed, for the logits, unless it has a token more than these; the
        block that the fork writes first is copied when it does so, if it is shared. The source goes on in place: it writes only positions that it has not
        committed, and no fork reads those. None when the source gave back what is needed, or room is
        short.
        """
        size = self.block_size
        kept = num_tokens - recompute_last
        count = -(-num_tokens // size)
        if source.num_committed < num_tokens or source.has_dropped:
            return None
        tables: list[list[int]] = []
        for group, window in enumerate(self._windows):
            first = first_needed(kept, window, size)
            table = shared_table(source.tables[group], first, count)
            if table is None or self._promises.spare(group) < 1 + margin:
                return None
            tables.append(table)
        for pool, table in zip(self._pools, tables, strict=True):
            for block in table:
                if block != GIVEN_BACK:
                    pool.share(block)
        chain = None if source.chain is None else source.chain.fork(num_tokens // size)
        blocks = SequenceBlocks(tables, chain, size)
        blocks.num_committed = blocks.num_cached = kept
        blocks.num_published = min(source.num_published, kept // size)
        blocks.may_share_writes = True
        self._begin(blocks, num_tokens)
        for group in range(len(tables)):
            self._promises.give(blocks, group, 1)  # the copy
        return blocks

    def reserve(self, blocks: SequenceBlocks, start: int, end: int) -> int:
        """Make room to write positions [start, end); say how many of them, from `start`, have it.

        Fewer than asked, down to 0, when blocks are short: nobody else's promise is touched. Blocks
        that are shared or published and would be written are replaced by copies (`take_copies`).
        """
        if end <= blocks.capacity and not blocks.may_share_writes:
            return end - start
        end = self._growth.affordable(blocks, start, end)
        if end <= start:
            return 0
        if blocks.may_share_writes:
            self._growth.unshare(blocks, start, end)
        if end > blocks.capacity:
            self._growth.grow(blocks, end)
        if end >= blocks.promise_end and self._promises.cancel(blocks):
            self.num_releases += 1
        return end - start

    def commit(self, blocks: SequenceBlocks, num_tokens: int, token_ids: Sequence[int]) -> None:
        """Positions [0, num_tokens) are final and hold `token_ids[:num_tokens]`.

        Publishes full blocks and gives back those behind a window. Costs nothing but a comparison
        on most steps.
        """
        blocks.num_committed = num_tokens
        if num_tokens < blocks.next_turn:
            return
        self._publisher.publish(blocks, token_ids)
        self.num_releases += self._retention.slide(blocks)
        blocks.next_turn = self._retention.next_turn(blocks)

    def truncate(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Forget positions from `num_tokens` on (rejected drafts). Committed ones cannot be forgotten.

        The executor is not told: it neither reads nor writes beyond a sequence's end, and the entries
        are written anew before the sequence gets there.
        """
        if num_tokens < blocks.num_committed:
            raise IntegrityError("Committed positions cannot be truncated.")
        count = -(-num_tokens // self.block_size)
        if count >= len(blocks.tables[0]):
            return
        for pool, table in zip(self._pools, blocks.tables, strict=True):
            while len(table) > count:
                pool.give_back(table.pop())
        blocks.capacity = count * self.block_size
        self.num_releases += 1

    def drop(self, blocks: SequenceBlocks, first: int, last: int) -> None:
        """Give back table entries [first, last) by KV policy; the sequence publishes nothing more.

        The range lies behind every position that is still to be written.
        """
        if self._retention.drop(blocks, first, last):
            blocks.has_dropped = True
            self.num_releases += 1

    def evict(
        self, blocks: SequenceBlocks, mass: Sequence[float], num_tokens: int, num_sinks: int
    ) -> None:
        """Give back the blocks of least `mass` (by table entry), down to `num_tokens`; after `commit`.

        Only where all tokens are seen: of other groups the window decides. It publishes nothing more.
        """
        if self._retention.evict(blocks, mass, num_tokens, num_sinks):
            blocks.has_dropped = True
            self.num_releases += 1

    def withdraw(self, blocks: SequenceBlocks) -> None:
        """What this sequence read is not to be trusted (its logits were not finite): no hit leads there.

        Not only what it published itself: the fault may lie in a block that it hit, where it would fail
        every request that begins alike. Whoever runs on the same beginning publishes nothing more.
        """
        chain = blocks.chain
        if chain is None or not blocks.num_published:
            return
        for name in chain.hashes[: blocks.num_published]:
            for pool in self._pools:
                pool.withdraw(name)
        for other in self._open:
            if other.chain is not None and other.chain.hashes[:1] == chain.hashes[:1]:
                other.has_dropped = True

    def release(self, blocks: SequenceBlocks) -> None:
        """The sequence ended or was preempted.

        Blocks go back from its tail: fewest others can use those, so they are evicted first.
        """
        if not blocks.is_open:
            raise IntegrityError("A sequence's blocks were released twice.")
        blocks.is_open = False
        self._open.remove(blocks)
        self._promises.cancel(blocks)
        for pool, table in zip(self._pools, blocks.tables, strict=True):
            for block in reversed(table):
                if block != GIVEN_BACK:
                    pool.give_back(block)
        self.num_releases += 1

    # ---- the tier below, events ----------------------------------------------------------------

    def start_load(self, group: int, block_hash: bytes) -> int | None:
        """A pending block for content that is being loaded into `group`; None: no room, or known."""
        if self._promises.spare(group) < 1:
            return None
        return self._pools[group].start_load(block_hash)

    def finish_load(
        self,
        group: int,
        block: int,
        *,
        is_good: bool,
        content: tuple[bytes | None, list[int]] | None = None,
    ) -> None:
        """The load of a pending block is done; `content` (parent's hash, token ids) is for subscribers."""
        self._pools[group].finish_load(block, is_good=is_good)
        self.num_releases += 1
        self.num_landed += 1
        name = self._pools[group].cache.hash_of[block]
        if name is not None and content is not None:
            self._publisher.report_loaded(group, name, *content)

    def give_up_load(self, group: int, block: int) -> None:
        """Nobody waits for this pending block any more; when its load is over, it is free."""
        self.num_landed += 1
        name = self._pools[group].cache.hash_of[block]
        if name is not None:
            self._pools[group].withdraw(name)

    def clear_cache(self) -> None:
        """Forget all cached content (the weights changed). Running sequences publish nothing more."""
        for pool in self._pools:
            pool.clear_cache()
        for blocks in self._open:
            blocks.has_dropped = True
        if self._log is not None:
            self._log.cleared()

    def take_copies(self) -> list[BlockCopy]:
        """Copies that the next plan must do, in this order, before its rows."""
        copies, self._growth.copies = self._growth.copies, []
        return copies

    def take_stores(self) -> tuple[BlockTransfer, ...]:
        """Blocks that the next plan stores in the tier below, a bounded number; asked when it has its rows."""
        return self._publisher.take_stores(MAX_STORES)

    @property
    def has_stores(self) -> bool:
        """Published blocks wait to be stored."""
        return self._publisher.has_stores

    def take_events(self) -> list[KVEvent]:
        """Blocks stored and removed since the last call (none unless `record_events`)."""
        return [] if self._log is None else self._log.take()

    # ---- inside --------------------------------------------------------------------------------

    def _names(self, chain: HashChain | None, token_ids: Sequence[int]) -> Sequence[bytes]:
        """Of all full blocks, but for the last token."""
        if chain is None:
            return ()
        count = (len(token_ids) - 1) // self.block_size
        chain.extend(token_ids, count)
        return chain.hashes[:count]

    def _begin(self, blocks: SequenceBlocks, promise_end: int) -> None:
        for group, table in enumerate(blocks.tables):
            kept = len(table) - table.count(GIVEN_BACK)
            blocks.first_kept[group] = len(table) - kept
            if table:
                blocks.writes.append((group, 0, list(table)))
            needed = self._promises.needs(group, kept, len(table), promise_end)
            self._promises.give(blocks, group, needed)
        blocks.promise_end = promise_end
        blocks.next_turn = self._retention.next_turn(blocks)
        self._open.add(blocks)
