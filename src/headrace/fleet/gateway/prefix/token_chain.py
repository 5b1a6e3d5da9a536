"""Token ids as a chain of our own 64-bit block hashes: engines' hashes differ by version and by seed, token ids do not."""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from headrace.fleet.gateway.prefix.kv_wire import extra_key

if TYPE_CHECKING:
    TokenIds = array[int]
else:  # Arrays take no type argument when they run.
    TokenIds = array


def chain(
    parent: int, token_ids: TokenIds, block_size: int, extra: Sequence[bytes] = ()
) -> Iterator[int]:
    """A hash for each full block. `extra`, if any, is what each block depends on besides; blocks behind its end: nothing."""
    data, width = token_ids.tobytes(), token_ids.itemsize * block_size
    for number in range(len(token_ids) // block_size):
        block = data[number * width : (number + 1) * width]
        more = extra[number] if number < len(extra) else b""
        digest = blake2b(parent.to_bytes(8, "big") + block + more, digest_size=8)
        parent = int.from_bytes(digest.digest(), "big")
        yield parent


def root(adapter: str) -> int:
    """Parent of the first block of a sequence with this LoRA adapter; empty: none."""
    return int.from_bytes(
        blake2b(adapter.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


def ids(token_ids: Sequence[int]) -> TokenIds:
    """Compact, 4 bytes each. Raises OverflowError or TypeError for what is no token id."""
    return array("I", token_ids)


class TokenPrompt:
    """A prompt's token ids, and its chain for whatever block sizes it is compared at."""

    def __init__(self, token_ids: TokenIds, *, salt: str = "", max_tokens: int = 131_072) -> None:
        """`salt`: the `cache_salt` that goes to the replica with the request. Behind `max_tokens` nothing is compared."""
        self.token_ids = token_ids
        self._compared = token_ids[:max_tokens]
        self._extra = (extra_key([salt]),) if salt else ()
        self._chains: dict[tuple[int, str], list[int]] = {}

    def hashes(self, block_size: int, adapter: str) -> list[int]:
        """One for each full block."""
        known = self._chains.get((block_size, adapter))
        if known is None:
            known = list(chain(root(adapter), self._compared, block_size, self._extra))
            self._chains[block_size, adapter] = known
        return known
