"""The KV blocks of one sequence: one table per KV group, and what the ledger knows about it."""

from headrace.engine.memory.hashing import HashChain

#: Table entry of a block that was given back.
GIVEN_BACK = -1


class SequenceBlocks:
    """Handle of one sequence in the ledger. Only the ledger changes it.

    Entry i of each table is the block of positions [i * block_size, (i + 1) * block_size), or
    GIVEN_BACK. All tables have the same length.

        [0, num_committed)         keys and values are final, full blocks of it are published
        [num_committed, capacity)  room: being computed, or not yet
    """

    __slots__ = (
        "capacity",
        "chain",
        "first_kept",
        "has_dropped",
        "is_open",
        "may_share_writes",
        "next_turn",
        "num_cached",
        "num_committed",
        "num_published",
        "promise_end",
        "promised",
        "tables",
        "writes",
    )

    def __init__(self, tables: list[list[int]], chain: HashChain | None, block_size: int) -> None:
        self.tables = tables
        self.chain = chain
        """Names of full blocks; None when nothing of this sequence is published."""
        self.capacity = len(tables[0]) * block_size
        self.num_cached = 0
        """Positions that a prefix hit or a fork gave."""
        self.num_committed = 0
        self.num_published = 0
        """Blocks that were offered to the prefix cache."""
        self.first_kept = [0] * len(tables)
        """Per windowed group: entries below were given back, or were never needed."""
        self.next_turn = 0
        """Committed position from which `commit` has something to do."""
        self.promised = [0] * len(tables)
        """Per group: blocks set aside for positions up to `promise_end`."""
        self.promise_end = 0
        self.may_share_writes = False
        """The next positions may lie in a block that must be copied first (after a fork)."""
        self.has_dropped = False
        """Contents no longer follow from the names (the KV policy dropped a block, or some block is in
        doubt): publish nothing."""
        self.is_open = True
        self.writes: list[tuple[int, int, list[int]]] = []
        """(group, first entry, block ids) that the executor has not been told."""

    def take_writes(self) -> list[tuple[int, int, list[int]]]:
        """Changes of the tables since the last call, in order."""
        writes, self.writes = self.writes, []
        return writes
