"""The blocks of one KV group and what state each is in.

    free     no content worth keeping                     -> take
    held     referenced by at least one sequence          -> give_back
    cached   referenced by none, content has a name       -> share (a hit), or take (evicts the oldest)
    pending  being loaded from the tier below             -> finish_load

`free + held + cached + pending = total`; cached blocks count as free capacity.
"""

from headrace.core.errors import IntegrityError
from headrace.engine.memory.events import KVEventLog
from headrace.engine.memory.prefix_cache import PrefixCache


class BlockPool:
    """Block ids [0, num_blocks) with reference counts."""

    __slots__ = ("cache", "free", "log", "num_held", "pending", "refs")

    def __init__(self, num_blocks: int, log: KVEventLog | None = None) -> None:
        self.refs = [0] * num_blocks
        # A stack: the block freed last is taken first, so that memory that was never touched stays so.
        self.free = list(range(num_blocks - 1, -1, -1))
        self.cache = PrefixCache(num_blocks)
        self.pending: set[int] = set()
        self.num_held = 0
        self.log = log

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return len(self.refs)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give: free ones and cached ones."""
        return len(self.free) + self.cache.num_idle

    def take(self) -> int:
        """A block with one reference and no name. Content is kept as long as a free block exists."""
        if self.free:
            block = self.free.pop()
        elif self.cache.num_idle:
            block = self.cache.pop()
            self._forget(block)
        else:
            raise IntegrityError("A KV block was asked for beyond what the pool has.")
        self.refs[block] = 1
        self.num_held += 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a held or cached block."""
        if self.refs[block] == 0:
            self.cache.remove(block)
            self.num_held += 1
        self.refs[block] += 1

    def give_back(self, block: int) -> bool:
        """One reference less; True when that was the last one."""
        refs = self.refs[block] - 1
        if refs < 0:
            raise IntegrityError(f"KV block {block} was given back more often than it was taken.")
        self.refs[block] = refs
        if refs:
            return False
        self.num_held -= 1
        if self.cache.hash_of[block] is None:
            self.free.append(block)
        else:
            self.cache.push(block)
        return True

    def is_writable(self, block: int) -> bool:
        """Only a block with one reference and no name may change; others are copied first."""
        return self.refs[block] == 1 and self.cache.hash_of[block] is None

    def start_load(self, block_hash: bytes) -> int | None:
        """A pending block for content that is being loaded; None when there is no room or no need."""
        if block_hash in self.cache.block_of or not self.num_available:
            return None
        block = self.take()
        self.refs[block] = 0
        self.num_held -= 1
        self.pending.add(block)
        self.cache.name(block, block_hash)
        return block

    def finish_load(self, block: int, *, is_good: bool) -> None:
        """A pending block has its content (cached), or the load failed or came too late (free)."""
        self.pending.remove(block)
        if is_good and self.cache.hash_of[block] is not None:
            self.cache.push(block)
        else:
            self.cache.forget(block)
            self.free.append(block)

    def withdraw(self, block_hash: bytes) -> None:
        """Forget a name, whatever state its block is in; an idle block becomes free."""
        block = self.cache.block_of.get(block_hash)
        if block is None:
            return
        self._forget(block)
        if self.refs[block] == 0 and block not in self.pending:
            self.cache.remove(block)
            self.free.append(block)

    def clear_cache(self) -> None:
        """Forget every name, also of held and pending blocks; idle blocks become free."""
        while self.cache.num_idle:
            self.free.append(self.cache.pop())
        for block in list(self.cache.block_of.values()):
            self.cache.forget(block)

    def _forget(self, block: int) -> None:
        block_hash = self.cache.forget(block)
        if self.log is not None and block_hash is not None:
            self.log.removed(block_hash)
