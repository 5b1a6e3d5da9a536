"""What replicas say they have cached: an index fed by their KV events.

Engines' block hashes are used only to follow their own events; prompts are compared by hashes of token ids that we make ourselves.
What cannot be placed (its parent is not known, because we came late or lost a message) is left out: the index
may know too little, which costs a hit, and is never told too much.

Where layers are in groups (full attention, sliding windows, state spaces), whose blocks may be of different sizes, those of
full attention say what is cached: all others have a part of it at most.
"""

from array import array

from headrace.fleet.gateway.prefix.kv_wire import BlockHash, Cleared, KVEvent, Removed, Stored
from headrace.fleet.gateway.prefix.token_chain import TokenPrompt, chain, root

#: Tiers times KV groups of one replica, and adapters, that are told apart.
_MAX_PLACES = 16
_MAX_ADAPTERS = 256


class _Replica:
    """Blocks of one replica: by the engine's hash, in each of its places, and by ours."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self.places: dict[tuple[str, int], dict[BlockHash, int]] = {}
        self.counts: dict[int, int] = {}
        """Our hash → how many engine's blocks hold it."""
        self.num_blocks = 0
        self.block_size = 0
        self.adapters: set[str] = set()
        self._has_full = False
        """It has told of layers that look at all of a sequence."""
        self.num_unplaced = 0
        """Blocks that were told and could not be placed."""

    def apply(self, event: KVEvent) -> None:
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            self._remove(event)
        elif isinstance(event, Cleared):
            self.clear()

    def clear(self) -> None:
        self.places.clear()
        self.counts.clear()
        self.num_blocks = 0

    def _store(self, event: Stored) -> None:
        if event.is_partial and self._has_full:
            return
        if not event.is_partial and not self._has_full:
            self._has_full = True
            self.clear()  # of what parts have told before
        if self.block_size not in (0, event.block_size):
            self.clear()
        self.block_size = event.block_size
        if event.adapter and len(self.adapters) < _MAX_ADAPTERS:
            self.adapters.add(event.adapter)
        place = self.places.get(event.place)
        if place is None:
            if len(self.places) >= _MAX_PLACES:
                self.num_unplaced += len(event.hashes)
                return
            place = self.places[event.place] = {}
        parent = root(event.adapter) if event.parent is None else self._find(event.parent)
        room = self._max_blocks - self.num_blocks
        if parent is None or room <= 0:
            self.num_unplaced += len(event.hashes)
            return
        ids = array("I", event.token_ids)
        ours = chain(parent, ids, event.block_size, event.extra)
        for theirs, key in zip(event.hashes[:room], ours, strict=False):
            if theirs not in place:
                place[theirs] = key
                self.counts[key] = self.counts.get(key, 0) + 1
                self.num_blocks += 1

    def _find(self, theirs: BlockHash) -> int | None:
        for place in self.places.values():
            key = place.get(theirs)
            if key is not None:
                return key
        return None

    def _remove(self, event: Removed) -> None:
        place = self.places.get(event.place)
        if place is None:
            return
        for theirs in event.hashes:
            key = place.pop(theirs, None)
            if key is not None:
                self.num_blocks -= 1
                left = self.counts[key] - 1
                if left:
                    self.counts[key] = left
                else:
                    del self.counts[key]

    def longest_run(self, prompt: TokenPrompt, model: str) -> int:
        """Tokens."""
        if not self.counts or not self.block_size:
            return 0
        hashes = prompt.hashes(self.block_size, model if model in self.adapters else "")
        for place, key in enumerate(hashes):
            if key not in self.counts:
                return place * self.block_size
        return len(hashes) * self.block_size


class ExactIndex:
    """Blocks by replica, at most `max_blocks` of each; what comes when it is full is left out."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._replicas: dict[str, _Replica] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks held, of all replicas."""
        return sum(one.num_blocks for one in self._replicas.values())

    def apply(self, replica_id: str, event: KVEvent) -> None:
        """What a replica told, in the order in which it told it."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            replica = self._replicas[replica_id] = _Replica(self._max_blocks)
        replica.apply(event)

    def cached(self, replica_id: str, prompt: TokenPrompt, model: str) -> int:
        """Tokens of the prompt, from its start, that the replica has. A model may be the name of an adapter."""
        replica = self._replicas.get(replica_id)
        return 0 if replica is None else replica.longest_run(prompt, model)

    def block_size(self, replica_id: str) -> int:
        """Tokens a block; 0: the replica has told of none yet."""
        replica = self._replicas.get(replica_id)
        return 0 if replica is None else replica.block_size

    def num_unplaced(self, replica_id: str) -> int:
        """Blocks that it told of and that are left out."""
        replica = self._replicas.get(replica_id)
        return 0 if replica is None else replica.num_unplaced

    def purge(self, replica_id: str) -> None:
        """Messages were lost, or it started anew: believe nothing of before."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.clear()

    def forget(self, replica_id: str) -> None:
        """It has gone."""
        self._replicas.pop(replica_id, None)
