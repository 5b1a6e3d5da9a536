"""What each replica was sent, as hashed blocks: a guess at its prefix cache that needs nothing of it.

A replica's blocks are in two sets, of which the older is dropped when the younger is half the bound: least recently used
blocks go first, to within half the bound, at the price of a set and no order. All blocks of a prompt are touched
together, so where a block is known, those before it are too, and the longest run is found by halving.
"""

from bisect import bisect_left
from collections.abc import Sequence

from headrace.fleet.gateway.prefix.blocks import Prompt


class _Replica:
    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: set[int] = set()
        self.old: set[int] = set()

    def longest_run(self, hashes: Sequence[int]) -> int:
        young, old = self.young, self.old
        if not hashes or (hashes[0] not in young and hashes[0] not in old):
            return 0
        return bisect_left(hashes, True, key=lambda h: h not in young and h not in old)


class ApproximateIndex:
    """Blocks by replica, at most `max_blocks` of each."""

    def __init__(self, max_blocks: int) -> None:
        self._half = max(1, max_blocks // 2)
        self._replicas: dict[str, _Replica] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks held, of all replicas."""
        return sum(len(one.young) + len(one.old) for one in self._replicas.values())

    def insert(self, replica_id: str, prompt: Prompt) -> None:
        """The replica was sent this prompt: its blocks are the most recent ones."""
        hashes = prompt.hashes[: self._half]
        if not hashes:
            return
        replica = self._replicas.get(replica_id)
        if replica is None:
            replica = self._replicas[replica_id] = _Replica()
        if len(replica.young) + len(hashes) > self._half:
            replica.old, replica.young = replica.young, set()
        replica.young.update(hashes)

    def cached(self, prompt: Prompt) -> dict[str, int]:
        """By replica: blocks of the prompt, from its start, that it was sent before. Those with none are left out."""
        found = {}
        for replica_id, replica in self._replicas.items():
            if run := replica.longest_run(prompt.hashes):
                found[replica_id] = run
        return found

    def age(self) -> None:
        """Drop the older half of each replica's blocks, and let the younger become the older."""
        for replica in self._replicas.values():
            replica.old, replica.young = replica.young, set()

    def forget(self, replica_id: str) -> None:
        """It has gone, or started anew with an empty cache."""
        self._replicas.pop(replica_id, None)
