"""What a grammar must know of a model's tokens."""

import hashlib
from collections.abc import Iterable, Mapping

from msgspec import Struct


class Vocabulary(Struct, frozen=True):
    """Bytes of every token, by id, as far as the model has logits."""

    tokens: list[bytes]
    """Empty: this id stands for no text, and no grammar allows it."""
    special_ids: list[int]
    """Tokens that steer the model: never text, allowed only where a grammar names them."""
    end_ids: list[int]
    """Ids that end an answer; may be none."""

    def digest(self) -> bytes:
        """sha256 of everything in it."""
        return hashlib.sha256(repr((self.tokens, self.special_ids, self.end_ids)).encode()).digest()


def read_vocabulary(
    spelling: Mapping[int, bytes],
    *,
    num_known: int,
    size: int,
    special_ids: Iterable[int],
    end_ids: Iterable[int],
) -> Vocabulary:
    """`spelling` has the bytes of ids below `num_known`; the model has logits for ids below `size`.

    The two differ where a model pads its vocabulary, or a tokenizer knows more than its model.
    """
    tokens = [spelling[token_id] if token_id < num_known else b"" for token_id in range(size)]
    return Vocabulary(
        tokens,
        sorted(token_id for token_id in special_ids if token_id < size),
        sorted(token_id for token_id in end_ids if 0 <= token_id < size),
    )
