"""Blocks that come from the tier below: which prefix waits for them, and what became of each.

    begin    the prefix of a waiting sequence lies in the tier: its missing blocks are pending
    take     the next plan carries their loads
    land     they are cached under their hashes, or the load failed and they are free
    expire   a load took too long: nobody waits for it any more, and its block is free when it is over

Whoever waits looks again when `KVLedger.num_landed` has grown. A failed load leaves a shorter prefix; the rest of it
is computed.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.core.step import BlockLanding, BlockTransfer
from headrace.engine.memory.hashing import HashChain
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.memory.matching import PrefixMatch

#: Seconds after which a sequence computes what it waited for.
MAX_LOAD_SECONDS = 10.0


class TierIndex(Protocol):
    """What the tier below has, without the contents."""

    def holds(self, group: int, key: bytes) -> bool:
        """Whether a block can be loaded from there."""
        ...


class _Load:
    __slots__ = ("is_awaited", "is_sent", "parent", "since", "token_ids", "transfer")

    def __init__(
        self, transfer: BlockTransfer, parent: bytes | None, token_ids: list[int], since: float
    ) -> None:
        self.transfer = transfer
        self.parent = parent
        self.token_ids = token_ids
        self.since = since
        self.is_sent = False
        self.is_awaited = True


class BlockLoads:
    """Loads of one engine. Without a tier there are none."""

    def __init__(self, ledger: KVLedger, tier: TierIndex | None = None) -> None:
        self._ledger = ledger
        self._tier = tier
        self._loads: dict[tuple[int, int], _Load] = {}

    @property
    def is_loading(self) -> bool:
        """Something is on its way that is worth waiting for."""
        return any(load.is_awaited for load in self._loads.values())

    @property
    def has_unsent(self) -> bool:
        """The next plan has something to begin."""
        return any(not load.is_sent for load in self._loads.values())

    def begin(
        self, chain: HashChain | None, match: PrefixMatch, token_ids: Sequence[int], now: float
    ) -> bool:
        """Load what the tier has of these tokens beyond `match`; whether anything is loaded now.

        After `KVLedger.can_reserve` said that the sequence could run without.
        """
        if self._tier is None or chain is None:
            return False
        missing = self._ledger.missing(chain, token_ids, self._tier.holds)
        if not missing:
            return False
        self._ledger.touch(match)  # or the loads might take the blocks that they are to follow
        size = self._ledger.block_size
        has_begun = False
        for group, index in missing:
            key = chain.hashes[index]
            block = self._ledger.start_load(group, key)
            if block is None:
                break
            parent = chain.hashes[index - 1] if index else None
            tokens = list(token_ids[index * size : (index + 1) * size])
            transfer = BlockTransfer(group, block, key)
            self._loads[group, block] = _Load(transfer, parent, tokens, now)
            has_begun = True
        return has_begun

    def take(self) -> tuple[BlockTransfer, ...]:
        """Loads that no plan carried yet."""
        unsent = [load for load in self._loads.values() if not load.is_sent]
        for load in unsent:
            load.is_sent = True
        return tuple(load.transfer for load in unsent)

    def resend(self) -> None:
        """Plans were lost: what is not over is begun again, which does no harm if it did begin."""
        for load in self._loads.values():
            load.is_sent = False

    def land(self, landings: Iterable[BlockLanding]) -> None:
        """Take in loads that are over."""
        for landing in landings:
            load = self._loads.get((landing.group, landing.block))
            if load is None or load.transfer.key != landing.key:
                continue
            del self._loads[landing.group, landing.block]
            content = (load.parent, load.token_ids)
            self._ledger.finish_load(
                landing.group, landing.block, is_good=landing.is_good, content=content
            )

    def expire(self, now: float) -> None:
        """Give up loads that take too long."""
        for load in self._loads.values():
            if load.is_awaited and now - load.since > MAX_LOAD_SECONDS:
                load.is_awaited = False
                self._ledger.give_up_load(load.transfer.group, load.transfer.block)
