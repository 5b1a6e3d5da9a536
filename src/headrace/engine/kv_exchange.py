"""Keys and values of a prefix, out of one engine and into another."""

from collections.abc import Callable

import numpy as np

from headrace.core.errors import BadRequestError
from headrace.core.kv_blocks import KVBlock, KVBlocks
from headrace.core.request import Request
from headrace.engine.executor.kv_storage import KVStorage
from headrace.engine.executor.tier import BlockTier
from headrace.engine.memory.block_table import GIVEN_BACK
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.sequence import media_spans, prompt_token_ids
from headrace.kernels.values import KVLayout


class KVExchange:
    """Not thread-safe. `between` does what must not happen while a step runs."""

    def __init__(
        self,
        ledger: KVLedger,
        storage: KVStorage,
        tier: BlockTier | None,
        between: Callable[[Callable[[], None]], None],
    ) -> None:
        self._ledger = ledger
        self._storage = storage
        self._tier = tier
        self._between = between

    def export(self, request: Request) -> KVBlocks:
        """What the cache has of the beginning of this prompt, in full blocks; perhaps nothing.

        Of a group with a window, only the blocks that whoever goes on after them reads.
        """
        chain = self._ledger.chain(request.adapter, request.cache_salt, media_spans(request))
        # One token more: the last block of a prompt counts too.
        match = self._ledger.match(chain, [*prompt_token_ids(request), 0])
        layout = self._storage.cache.layout
        found: list[KVBlock] = []

        def read() -> None:
            for group, table in enumerate(match.tables):
                layers = _layers(layout, group)
                for index, block in enumerate(table):
                    if block != GIVEN_BACK and chain is not None:
                        data = self._storage.cache.export_block(group, block)
                        found.append(KVBlock(chain.hashes[index], layers, data.tobytes()))

        self._between(read)
        return KVBlocks(
            num_kv_heads=layout.num_kv_heads,
            head_size=layout.head_size,
            block_size=layout.block_size,
            blocks=tuple(found),
        )

    def accept(self, given: KVBlocks) -> None:
        """Put blocks into the tier: prompts that begin with them load them. Raises BadRequestError.

        They are trusted to be what their keys name. Where the tier has no room, the oldest are forgotten.
        """
        if self._tier is None:
            raise BadRequestError("This engine takes no KV blocks: start it with --kv-tier-memory.")
        layout = self._storage.cache.layout
        shape = (layout.num_kv_heads, layout.block_size, layout.head_size)
        if (given.num_kv_heads, given.block_size, given.head_size) != shape:
            raise BadRequestError("The KV blocks are of another shape than this model's.")
        groups = {_layers(layout, group): group for group in range(len(layout.num_blocks))}
        arrays = []
        for block in given.blocks:
            group = groups.get(block.layers)
            if group is None:
                raise BadRequestError("The KV blocks are of other layers than this model's.")
            full = (2, len(block.layers), *shape)
            if len(block.key) != 32 or len(block.data) != 4 * int(np.prod(full)):
                raise BadRequestError("A KV block has a wrong number of bytes.")
            data = np.frombuffer(block.data, "<f4").astype(np.float32).reshape(full)
            if not np.isfinite(data).all():
                raise BadRequestError("A KV block holds numbers that are not finite.")
            arrays.append((group, block.key, data))
        for group, key, data in arrays:
            self._tier.keep(group, key, data)


def _layers(layout: KVLayout, group: int) -> tuple[int, ...]:
    return tuple(layer for layer, other in enumerate(layout.layer_groups) if other == group)
