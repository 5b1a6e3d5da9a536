"""What the prefix cache tells the outside: blocks stored and removed.

The structs encode with msgpack to the arrays that vLLM's event subscribers read: the class name as tag,
then the fields in this order, none left out (subscribers skip fields that they do not know, but miss
ones that they do).
"""

from msgspec import Struct

from headrace.engine.memory.hashing import NO_ORIGIN, Origin


class BlockStored(Struct, frozen=True, tag=True, array_like=True):
    """Consecutive full blocks of one sequence can now be found by their hashes."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    """Hash of the block before the first one; None when that is the start of the sequence."""
    token_ids: list[int]
    """Tokens of all these blocks."""
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    """Tier that holds the blocks; None is the engine's own memory."""
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None
    """Per block, what its hash depends on beside its tokens and parent: of a first block the salt. None: nothing."""


class BlockRemoved(Struct, frozen=True, tag=True, array_like=True):
    """Blocks that can be found no more."""

    block_hashes: list[bytes]
    medium: str | None = None


class AllBlocksCleared(Struct, frozen=True, tag=True, array_like=True):
    """Nothing is cached any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventLog:
    """Events since the last `take`, bounded.

    When nobody takes them, the log starts over with `AllBlocksCleared`: a subscriber then believes
    that less is cached than is, which costs a hit and is never wrong.
    """

    __slots__ = ("_events", "_limit", "_removed")

    def __init__(self, limit: int = 8_192) -> None:
        self._limit = limit
        self._events: list[KVEvent] = []
        self._removed: list[bytes] = []

    def stored(
        self,
        block_hashes: list[bytes],
        parent: bytes | None,
        token_ids: list[int],
        block_size: int,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        """Blocks were published, in chain order."""
        self._flush()
        extra: list[list[str] | None] | None = None
        if origin.salt and parent is None:
            extra = [[origin.salt.decode("utf-8", "backslashreplace")]]
            extra += [None] * (len(block_hashes) - 1)
        self._append(
            BlockStored(
                block_hashes,
                parent,
                token_ids,
                block_size,
                lora_name=origin.adapter,
                extra_keys=extra,
            )
        )

    def removed(self, block_hash: bytes) -> None:
        """A block was evicted; neighbours are reported together."""
        self._removed.append(block_hash)
        if len(self._removed) >= self._limit:
            self._flush()

    def cleared(self) -> None:
        """The whole cache was dropped; what was said before no longer matters."""
        self._removed = []
        self._events = [AllBlocksCleared()]

    def take(self) -> list[KVEvent]:
        """Everything since the last call, in order."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._removed:
            removed, self._removed = self._removed, []
            self._append(BlockRemoved(removed))

    def _append(self, event: KVEvent) -> None:
        if len(self._events) >= self._limit:
            self._events = [AllBlocksCleared()]
        self._events.append(event)
