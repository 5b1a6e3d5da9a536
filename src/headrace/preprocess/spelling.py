"""Token → the bytes that it stands for.

Output is made of bytes, not of decoded prefixes: the bytes of each token are looked up once and joined,
so that a stream costs the same for every token and its pieces add up to what one decoding of all gives.
"""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.preprocess.tokenizer_data import Spelling


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for the 256 bytes: printable Latin-1 stands for itself, the rest is moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(moved)})
    return alphabet


BYTE_ALPHABET: Final[Mapping[str, int]] = _byte_alphabet()


def spell(token: str, spelling: Spelling) -> bytes:
    """The bytes of an ordinary token.

    A byte-level token with a character outside the alphabet (an added token) is its own text.
    """
    if spelling is Spelling.BYTE_LEVEL:
        try:
            return bytes([BYTE_ALPHABET[character] for character in token])
        except KeyError:
            return token.encode()
    if spelling is Spelling.WORD_PIECE:
        return token[2:].encode() if token.startswith("##") else f" {token}".encode()
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("▁", " ").encode()


class TokenBytes(dict[int, bytes]):
    """Token id → bytes, filled as ids are asked for; an id outside the vocabulary has none."""

    def __init__(self, look_up: Callable[[int], bytes]) -> None:
        super().__init__()
        self._look_up = look_up

    def __missing__(self, token_id: int) -> bytes:
        spelt = self._look_up(token_id)
        self[token_id] = spelt
        return spelt
