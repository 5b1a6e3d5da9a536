"""Keys and values outside an engine: one form, whatever dtype or parallelism they are kept with inside."""

from msgspec import Struct


class KVBlock(Struct, frozen=True, array_like=True):
    """One full block in one KV group, under the name that it has in every prefix cache."""

    key: bytes
    """The block's hash (`engine/memory/hashing.py`): equal keys, equal contents."""
    layers: tuple[int, ...]
    """Layers of the model that the group has, ascending."""
    data: bytes
    """float32, little endian: [2, layer, KV head, token, D], keys then values."""


class KVBlocks(Struct, frozen=True, kw_only=True):
    """Blocks that one engine gave and another can take."""

    num_kv_heads: int
    head_size: int
    block_size: int
    blocks: tuple[KVBlock, ...]
