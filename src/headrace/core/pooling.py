"""What a text becomes that is not continued: a vector, or scores."""

from enum import StrEnum

from msgspec import Struct


class PoolKind(StrEnum):
    """Which states of a text's tokens make its vector."""

    MEAN = "mean"
    """The mean of all tokens'."""
    LAST = "last"
    """The last token's."""
    CLS = "cls"
    """The first token's."""
    SCORES = "scores"
    """None: the outputs of the model's classification head."""


class PoolingParams(Struct, frozen=True, array_like=True):
    """What is made of one text's states, in this order: pool, cut, normalise (or activate)."""

    kind: PoolKind
    normalize: bool = True
    """To length 1. For SCORES: through a sigmoid (one label) or softmax (several)."""
    dimensions: int = 0
    """The first so many elements only (Matryoshka); 0 keeps all."""
    second_start: int = 0
    """Where the second text of a pair begins; 0: it is one text. Matters to models with token types."""
