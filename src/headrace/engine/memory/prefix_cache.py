"""Which block holds which content, and in what order idle ones are given up."""


class PrefixCache:
    """Names of one pool's blocks, and an LRU list of the named blocks that nobody references.

    The list is intrusive: `previous` and `next` are arrays over block ids with a sentinel at index
    `num_blocks`, so that taking a block out of the middle (a hit) is O(1).

        sentinel -> least recently used (evicted first) -> ... -> most recently used -> sentinel
    """

    __slots__ = ("_next", "_previous", "_sentinel", "block_of", "hash_of", "num_idle")

    def __init__(self, num_blocks: int) -> None:
        self.block_of: dict[bytes, int] = {}
        self.hash_of: list[bytes | None] = [None] * num_blocks
        self.num_idle = 0
        self._sentinel = num_blocks
        self._previous = [-1] * num_blocks + [num_blocks]
        self._next = [-1] * num_blocks + [num_blocks]

    def name(self, block: int, block_hash: bytes) -> bool:
        """Give a block its name; False when another block already has it (the first one stays)."""
        if block_hash in self.block_of:
            return False
        self.block_of[block_hash] = block
        self.hash_of[block] = block_hash
        return True

    def forget(self, block: int) -> bytes | None:
        """Take a block's name away, if it has one, and return it."""
        block_hash = self.hash_of[block]
        if block_hash is not None:
            del self.block_of[block_hash]
            self.hash_of[block] = None
        return block_hash

    def push(self, block: int) -> None:
        """A named block is referenced no more: it is now the most recently used idle one."""
        sentinel = self._sentinel
        last = self._previous[sentinel]
        self._next[last] = block
        self._previous[block] = last
        self._next[block] = sentinel
        self._previous[sentinel] = block
        self.num_idle += 1

    def remove(self, block: int) -> None:
        """An idle block is referenced again."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._previous[block] = self._next[block] = -1
        self.num_idle -= 1

    def pop(self) -> int:
        """Take out the least recently used idle block; it keeps its name until `forget`."""
        block = self._next[self._sentinel]
        self.remove(block)
        return block

    def idle_blocks(self) -> list[int]:
        """Idle blocks, the next to be evicted first. For checks; O(idle)."""
        blocks: list[int] = []
        block = self._next[self._sentinel]
        while block != self._sentinel and len(blocks) <= self._sentinel:
            blocks.append(block)
            block = self._next[block]
        return blocks
