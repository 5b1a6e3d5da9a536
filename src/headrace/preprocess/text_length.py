"""Is a text too long for certain? Told from its bytes, so that megabytes need not be cut into tokens first.

A token stands for at most so many bytes. That is a bound only where every byte that counts gets into some
token: where the vocabulary has it, and nothing on the way drops or merges text without bound. Otherwise
nothing is certain, and the text is tokenised.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import tokenizers

from headrace.preprocess.spelling import BYTE_ALPHABET
from headrace.preprocess.tokenizer_data import AddedToken, Spelling

#: Bytes of text that become one byte at most. Normal forms: 4 bytes of U+1D633 are one "r" in NFKC; 7 of
#: U+1FBE U+0308 U+0301 are 2 in NFC. Lower case: 3 bytes of U+212A are one "k".
_SHRINKING: Final = {
    "NFC": 4, "NFD": 4, "NFKC": 4, "NFKD": 4, "Lowercase": 4, "Prepend": 1, "ByteLevel": 1,
}  # fmt: skip
#: Pre-tokenizers that cut and drop nothing, unless they say so.
_CUTTING: Final = frozenset({"ByteLevel", "Split", "Digits", "Metaspace", "Punctuation"})


#: Bytes that a byte-level vocabulary may lack: control characters, and those of no or of rare characters
#: (from U+40000 on). No normalizer makes them of others.
_RARE: Final = frozenset((*range(0x20), 0x7F, 0xC0, 0xC1, *range(0xF1, 0x100)))


class LengthBound(NamedTuple):
    """What a text's length says of the number of its tokens."""

    bytes_per_token: int = 0
    """Most bytes of a text that one token can stand for; 0: there is no bound."""
    uncounted: bytes = b""
    """Bytes that may get into no token at all."""
    counts_space: bool = True
    """No token swallows any amount of white space."""

    def is_passed(self, text: str, num_tokens: int) -> bool:
        """The text has more tokens than this for certain."""
        most = num_tokens * self.bytes_per_token
        if not most or 4 * len(text) <= most:
            return False
        if not self.counts_space:
            text = "".join(text.split())
        data = text.encode("utf-8", "surrogatepass")
        return len(data.translate(None, self.uncounted) if self.uncounted else data) > most


def length_bound(
    core: tokenizers.Tokenizer, spelling: Spelling, added: Sequence[AddedToken]
) -> LengthBound:
    """The bound for a tokenizer. O(vocabulary)."""
    shrinking = _shrinking(_state(core.normalizer))
    missing = _missing_bytes(core, spelling)
    if not shrinking or not _keeps_all(_state(core.pre_tokenizer)) or not missing <= _RARE:
        return LengthBound()
    longest = max(_longest(core, spelling), *(len(token.content.encode()) for token in added), 1)
    counts_space = not any(token.lstrip or token.rstrip for token in added)
    return LengthBound(shrinking * longest, bytes(sorted(missing)), counts_space)


def _longest(core: tokenizers.Tokenizer, spelling: Spelling) -> int:
    """Bytes of the longest token of the vocabulary, or a few more."""
    num_tokens = core.get_vocab_size(with_added_tokens=False)
    # One by one: all at once would keep other threads waiting for as long as a large vocabulary takes.
    found = (core.id_to_token(token_id) for token_id in range(num_tokens))
    tokens = [token for token in found if token is not None]
    if len(tokens) < num_tokens:  # there are gaps, so some ids are larger
        tokens = list(core.get_vocab(with_added_tokens=False))
    is_byte_level = spelling is Spelling.BYTE_LEVEL
    return max((len(t if is_byte_level else t.encode()) for t in tokens), default=1)


def _missing_bytes(core: tokenizers.Tokenizer, spelling: Spelling) -> frozenset[int]:
    """Bytes that the vocabulary lacks; characters with them are dropped, or become unknown tokens."""
    model = core.model
    if not isinstance(model, tokenizers.models.BPE):
        return frozenset(range(256))
    if spelling is Spelling.BYTE_LEVEL:
        names = BYTE_ALPHABET
    elif model.byte_fallback:
        names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    else:
        return frozenset(range(256))
    missing = frozenset(byte for name, byte in names.items() if core.token_to_id(name) is None)
    # Without one of its bytes a piece falls back to nothing, or to the unknown token, as a whole.
    is_all_or_none = spelling is not Spelling.BYTE_LEVEL and missing
    return frozenset(range(256)) if is_all_or_none else missing


def _shrinking(normalizer: dict[str, Any] | None) -> int:
    """Bytes that may become one; 0: any number."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        product = 1
        for part in normalizer["normalizers"]:
            product *= _shrinking(part)
        return product
    if kind == "Replace":
        old, new = normalizer["pattern"].get("String"), normalizer["content"]
        return -(-len(old.encode()) // len(new.encode())) if old and new else 0
    return _SHRINKING.get(kind, 0)


def _keeps_all(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_all, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in _CUTTING and pre_tokenizer.get("behavior") != "Removed"


def _state(part: Any) -> dict[str, Any] | None:
    """A part of the tokenizer as tokenizer.json has it."""
    if part is None:
        return None
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state
