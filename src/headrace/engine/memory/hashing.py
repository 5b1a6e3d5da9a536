"""Names of KV blocks: a hash chain over everything that decides what a block holds.

    root  = H(weights, model, KV format, block size, adapter, salt)
    block = H(parent block or root, token ids of the block, media that lie in the block)

H is sha256 over typed, length-prefixed fields, so no two different inputs are the same bytes. Equal
names therefore mean equal contents: same model, same adapter, same tenant, same tokens from position 0.
"""

from collections.abc import Sequence
from hashlib import sha256
from struct import pack
from typing import Final, NamedTuple

from msgspec import Struct


class RootKey(Struct, frozen=True, kw_only=True):
    """What all sequences of one engine share. Any change of the weights is another digest."""

    weights_digest: bytes
    model_digest: bytes
    """What else decides keys and values: the architecture, with the rope and the windows as served."""
    kv_format: str
    """Type and granularity of stored keys and values, such as `f16` or `int8/token-head`."""


class Origin(NamedTuple):
    """What of a root subscribers must be told, for they cannot take hashes apart."""

    adapter: str | None = None
    salt: bytes = b""


NO_ORIGIN: Final = Origin()


class MediaSpan(Struct, frozen=True):
    """Positions [start, start + num_tokens) hold embeddings, whose content has this digest."""

    start: int
    num_tokens: int
    digest: bytes


def root_hash(key: RootKey, block_size: int, adapter: str | None, salt: bytes) -> bytes:
    """Parent of a sequence's first block. Adapter and salt are different fields: they never collide."""
    return sha256(
        b"".join(
            (
                _field(b"domain", b"headrace/kv/root/2"),
                _field(b"weights", key.weights_digest),
                _field(b"model", key.model_digest),
                _field(b"format", key.kv_format.encode()),
                _field(b"block", pack("<Q", block_size)),
                _field(b"adapter", b"" if adapter is None else b"=" + adapter.encode()),
                _field(b"salt", salt),
            )
        )
    ).digest()


def block_hash(
    parent: bytes, token_ids: Sequence[int], media: Sequence[tuple[int, bytes]] = ()
) -> bytes:
    """Name of a full block. Token ids are in [0, 2^32).

    `media` has, per embedding span that touches the block, where the span starts relative to the block
    (negative when it began in an earlier one) and its digest.
    """
    data = _BLOCK + _field(b"parent", parent)
    data += _field(b"tokens", pack(f"<{len(token_ids)}I", *token_ids))
    for offset, digest in media:
        data += _field(b"media", pack("<q", offset) + digest)
    return sha256(data).digest()


class HashChain:
    """The names of one sequence's full blocks, each computed once and kept across preemptions."""

    __slots__ = ("_block_size", "_media", "hashes", "origin", "root")

    def __init__(
        self,
        root: bytes,
        block_size: int,
        media: tuple[MediaSpan, ...] = (),
        origin: Origin = NO_ORIGIN,
    ) -> None:
        self.root = root
        self.origin = origin
        self.hashes: list[bytes] = []
        self._block_size = block_size
        self._media = media

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Name the blocks up to `num_blocks`; `token_ids` is the whole sequence from position 0."""
        size = self._block_size
        hashes = self.hashes
        parent = hashes[-1] if hashes else self.root
        for start in range(len(hashes) * size, num_blocks * size, size):
            media = self._media_in(start) if self._media else ()
            parent = block_hash(parent, token_ids[start : start + size], media)
            hashes.append(parent)

    def fork(self, num_blocks: int) -> "HashChain":
        """A chain that begins with the first `num_blocks` names and goes its own way."""
        chain = HashChain(self.root, self._block_size, self._media, self.origin)
        chain.hashes = self.hashes[:num_blocks]
        return chain

    def _media_in(self, start: int) -> list[tuple[int, bytes]]:
        end = start + self._block_size
        return [
            (span.start - start, span.digest)
            for span in self._media
            if span.start < end and span.start + span.num_tokens > start
        ]


def _field(tag: bytes, value: bytes) -> bytes:
    return bytes((len(tag),)) + tag + len(value).to_bytes(8, "little") + value


_BLOCK = _field(b"domain", b"headrace/kv/block/1")
