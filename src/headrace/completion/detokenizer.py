"""Token ids → text, a token at a time, in whole characters."""

from codecs import utf_8_decode
from collections.abc import Iterable, Mapping


class Detokenizer:
    """A stream of tokens as text.

    Tokens are spelt as bytes and the bytes decoded as UTF-8; those of an unfinished character are held
    until it is complete. The pieces of a stream, with what `flush` gives, add up to the decoding of all
    tokens at once, however they are pushed. Bytes that can never become a character are U+FFFD, one for
    each maximal part of a character, as Unicode recommends.
    """

    def __init__(self, table: Mapping[int, bytes], *, strips_space: bool = False) -> None:
        """`table` spells each token; with `strips_space` one space at the start of all text is dropped."""
        self._table = table
        self._tail = b""
        self._strips_space = strips_space

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        spelt = self._table[token_id]
        return self._decode(spelt) if spelt else ""

    def push_all(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete; one decoding for all of them."""
        spelt = b"".join(map(self._table.__getitem__, token_ids))
        return self._decode(spelt) if spelt else ""

    def flush(self) -> str:
        """The end of the stream: what is held is no character, and becomes U+FFFD."""
        text = self._tail.decode("utf-8", "replace")
        self._tail = b""
        return text

    def _decode(self, spelt: bytes) -> str:
        if self._strips_space:
            self._strips_space = False
            spelt = spelt.removeprefix(b" ")
        if self._tail:
            spelt = self._tail + spelt
        text, used = utf_8_decode(spelt, "replace", False)
        self._tail = spelt[used:]
        return text
