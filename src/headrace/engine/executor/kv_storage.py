"""The executor's keys and values: copied between blocks, loaded from the tier below, stored there."""

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from headrace.core.errors import KernelError
from headrace.core.step import BlockLanding, BlockTransfer, StepPlan
from headrace.engine.executor.tier import BlockTier
from headrace.kernels.ops import KVCache

log = logging.getLogger("headrace.engine.kv")


class KVStorage:
    """Loads run on a thread of their own, between and during steps.

    That is safe: the block of a load is read by no row before `take_landed` has told of it, and the load
    begins in its plan's turn, when all that used the block before has run.
    """

    def __init__(self, cache: KVCache, tier: BlockTier | None = None) -> None:
        self.cache = cache
        self._tier = tier
        self._thread: ThreadPoolExecutor | None = None
        self._begun: dict[tuple[int, int], bytes] = {}
        """Loads that `take_landed` has not told of: block to key."""
        self._landed: deque[BlockLanding] = deque()

    def begin(self, plan: StepPlan) -> None:
        """The plan's copies, and the beginning of its loads; ahead of its rows."""
        for copy in plan.block_copies:
            self.cache.copy_block(copy.group, copy.source, copy.target)
        if plan.block_loads or plan.block_stores:
            if self._tier is None:
                raise KernelError("This executor has no tier below its KV cache.")
            for load in plan.block_loads:
                self._begin(load, self._tier)

    def finish(self, plan: StepPlan) -> None:
        """The plan's stores; behind its rows. One that fails costs a hit, and is never wrong."""
        if self._tier is None:
            return
        for store in plan.block_stores:
            if self._tier.holds(store.group, store.key):
                continue
            try:
                data = self.cache.export_block(store.group, store.block)
                self._tier.keep(store.group, store.key, data)
            except Exception:
                log.exception("A KV block could not be stored")

    def take_landed(self) -> list[BlockLanding]:
        """Loads that ended since the last call. For the thread that makes plans."""
        landed: list[BlockLanding] = []
        while self._landed:
            landing = self._landed.popleft()
            del self._begun[landing.group, landing.block]
            landed.append(landing)
        return landed

    def clear(self) -> None:
        """Give the memory of blocks back, here and in the tier below. No plan may be in flight."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)  # loads that were begun land first
            self._thread = None
        if self._tier is not None:
            self._tier.clear()
        self.cache.clear()

    def close(self) -> None:
        """Wait for the load that runs; those behind it are not begun."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _begin(self, load: BlockTransfer, tier: BlockTier) -> None:
        if self._begun.get((load.group, load.block)) == load.key:
            return
        self._begun[load.group, load.block] = load.key
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-load")
        self._thread.submit(self._load, load, tier)

    def _load(self, load: BlockTransfer, tier: BlockTier) -> None:
        is_good = False
        try:
            data = tier.fetch(load.group, load.key)
            if data is not None:
                self.cache.import_block(load.group, load.block, data)
                is_good = True
        except Exception:
            log.exception("A KV block could not be loaded; it is computed")
        if not is_good:
            tier.drop(load.group, load.key)  # or it would be asked for again
        self._landed.append(BlockLanding(load.group, load.block, load.key, is_good))
