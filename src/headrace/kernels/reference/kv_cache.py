"""Keys and values as plain arrays, each value rounded to the cache's dtype."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.kernels.reference.rounding import round_keys, round_values
from headrace.kernels.values import DType, KVLayout


class ReferenceKVCache:
    """Per layer one array [2, B, G, P, D] of float32, keys then values."""

    def __init__(self, layout: KVLayout) -> None:
        if layout.dtype is DType.Q8:
            raise KernelError("KV cache: q8 is not a KV dtype; use bf16, f16, int16, int8 or f32.")
        self.layout = layout
        self._layers = [
            np.zeros(
                (
                    2,
                    layout.num_blocks[group],
                    layout.num_kv_heads,
                    layout.block_size,
                    layout.head_size,
                ),
                np.float32,
            )
            for group in layout.layer_groups
        ]

    def clear(self) -> None:
        """Part of `ops.KVCache`."""
        for layer in self._layers:
            layer.fill(0.0)

    def write(
        self,
        layer: int,
        block: int,
        offset: int,
        key: NDArray[np.float32],
        value: NDArray[np.float32],
    ) -> None:
        """Store one token: key and value [G, D], rounded."""
        data = self._layers[layer]
        data[0, block, :, offset] = round_keys(key, self.layout.dtype)
        data[1, block, :, offset] = round_values(value, self.layout.dtype)

    def gather(
        self, layer: int, table: NDArray[np.int32], first: int, last: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """(key indices, keys, values) of [first, last) in a block table; absent blocks are left out.

        Shapes [L], [L, G, D], [L, G, D].
        """
        indices = np.arange(first, last)
        blocks = table[indices // self.layout.block_size]
        indices = indices[blocks >= 0]
        blocks = blocks[blocks >= 0]
        offsets = indices % self.layout.block_size
        data = self._layers[layer]
        return indices, data[0, blocks, :, offsets], data[1, blocks, :, offsets]

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copy one block in every layer of the group."""
        for data in self._of_group(group):
            data[:, target] = data[:, source]

    def export_block(self, group: int, block: int) -> NDArray[np.float32]:
        """[2, layers of the group, G, P, D], keys then values."""
        return np.stack([data[:, block] for data in self._of_group(group)], axis=1)

    def import_block(self, group: int, block: int, data: NDArray[np.float32]) -> None:
        """The inverse of `export_block`, rounding to the cache's dtype."""
        layers = self._of_group(group)
        expected = (2, len(layers), *layers[0].shape[2:])
        if data.shape != expected:
            raise KernelError(f"import_block: data has shape {data.shape}, {expected} is needed.")
        keys, values = np.asarray(data, np.float32)
        keys = round_keys(keys, self.layout.dtype)
        values = round_values(values, self.layout.dtype)
        for index, layer in enumerate(layers):
            layer[0, block] = keys[index]
            layer[1, block] = values[index]

    def _of_group(self, group: int) -> list[NDArray[np.float32]]:
        pairs = zip(self._layers, self.layout.layer_groups, strict=True)
        layers = [layer for layer, layer_group in pairs if layer_group == group]
        if not layers:
            raise KernelError(f"KV cache: there is no KV group {group}.")
        return layers
