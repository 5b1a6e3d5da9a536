"""Messages of KV events, as vLLM, SGLang and headrace publish them, into values.

A message is a msgpack batch `[seconds, [event, ...], rank]`. Events are arrays that begin with their name, or (vLLM since
June 2026) maps with the name under "type"; hashes are numbers or bytes. Fields that are missing at an array's end are
unset, unknown fields and unknown kinds of events are passed over: the format grows.
Source: vllm/distributed/kv_events.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

BlockHash = int | bytes

_STORED: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
_REMOVED: Final = ("block_hashes", "medium", "group_idx")
#: Groups that hold the end of a sequence only, whatever of its beginning is still there.
_PARTIAL: Final = frozenset(
    {"sliding_window", "sliding_window_mla", "chunked_local_attention", "mamba"}
)
_MAX_HASH: Final = 64
_MAX_BLOCK_SIZE: Final = 65_536


class MalformedError(ValueError):
    """A message that is no batch of events; what it should have told is lost."""


class Stored(Struct, frozen=True, kw_only=True):
    """Consecutive blocks of one sequence."""

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    """Of all these blocks: block_size for each."""
    block_size: int
    place: tuple[str, int]
    """Tier of memory, and KV group: a block may be in several."""
    adapter: str = ""
    extra: tuple[bytes, ...] = ()
    """Per block what its hash depends on beside tokens and adapter, encoded; empty: nothing. No entries: nothing."""
    is_partial: bool = False
    """Of a group of layers that look at the end of a sequence only: a prefix is not cached because they have it."""


class Removed(Struct, frozen=True, kw_only=True):
    """Blocks that a place has no more."""

    hashes: tuple[BlockHash, ...]
    place: tuple[str, int]


class Cleared(Struct, frozen=True):
    """Nothing is cached any more."""


KVEvent = Stored | Removed | Cleared


def decode_batch(payload: bytes) -> list[KVEvent]:
    """The events of a message, in order. Raises MalformedError."""
    try:
        batch = msgspec.msgpack.decode(payload)
        events = batch["events"] if isinstance(batch, dict) else batch[1]
        return [event for item in events if (event := _event(item)) is not None]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise MalformedError(f"{type(error).__name__}: {error}") from None


def extra_key(values: Sequence[object]) -> bytes:
    """The encoding of one block's extra keys; empty for none."""
    return msgspec.msgpack.encode(list(values)) if values else b""


def _event(item: Any) -> KVEvent | None:
    kind = item["type"] if isinstance(item, dict) else item[0]
    if kind == "BlockStored":
        return _stored(_fields(item, _STORED))
    if kind == "BlockRemoved":
        fields = _fields(item, _REMOVED)
        return Removed(hashes=_hashes(fields["block_hashes"]), place=_place(fields))
    return Cleared() if kind == "AllBlocksCleared" else None


def _fields(item: Any, names: Sequence[str]) -> Mapping[str, Any]:
    return item if isinstance(item, dict) else dict(zip(names, item[1:], strict=False))


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes, block_size = _hashes(fields["block_hashes"]), fields["block_size"]
    token_ids = tuple(fields["token_ids"])
    if type(block_size) is not int or not 0 < block_size <= _MAX_BLOCK_SIZE:
        raise MalformedError(f"a block of {block_size!r} tokens")
    if len(token_ids) != block_size * len(hashes):
        raise MalformedError(f"{len(token_ids)} tokens in {len(hashes)} blocks of {block_size}")
    if not all(type(token) is int and 0 <= token < 1 << 32 for token in token_ids):
        raise MalformedError("token ids that are none")
    parent = fields.get("parent_block_hash")
    adapter = fields.get("lora_name")
    return Stored(
        hashes=hashes,
        parent=None if parent is None else _hashes([parent])[0],
        token_ids=token_ids,
        block_size=block_size,
        place=_place(fields),
        adapter=adapter if isinstance(adapter, str) else "",
        extra=_extra(fields.get("extra_keys"), adapter, len(hashes)),
        is_partial=_is_partial(fields),
    )


def _hashes(found: Any) -> tuple[BlockHash, ...]:
    hashes = tuple(found)
    for one in hashes:
        if not (type(one) is int or (type(one) is bytes and len(one) <= _MAX_HASH)):
            raise MalformedError("block hashes that are neither numbers nor short bytes")
    return hashes


def _place(fields: Mapping[str, Any]) -> tuple[str, int]:
    medium, group = fields.get("medium"), fields.get("group_idx")
    tier = medium[:16] if isinstance(medium, str) else "GPU"
    return tier, group if isinstance(group, int) else 0


def _is_partial(fields: Mapping[str, Any]) -> bool:
    kind, window = fields.get("kv_cache_spec_kind"), fields.get("kv_cache_spec_sliding_window")
    return type(window) is int or (isinstance(kind, str) and kind in _PARTIAL)


def _extra(found: Any, adapter: Any, count: int) -> tuple[bytes, ...]:
    """Without the adapter's name, which vLLM puts among them and beside them."""
    if not found:
        return ()
    if len(found) != count:
        raise MalformedError(f"extra keys of {len(found)} blocks, not {count}")
    return tuple(extra_key([key for key in keys or () if key != adapter]) for keys in found)
