"""Beam search, as a request asks for it."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

#: The most beams that one request may have.
MAX_BEAMS: Final = 16
#: The most token ids that end a request with beams.
MAX_BEAM_STOPS: Final = 16


class EarlyStopping(StrEnum):
    """When a search ends that could go on."""

    FULL = "full"
    """As soon as as many answers have ended as there are beams."""
    HEURISTIC = "heuristic"
    """When no beam, were it to end now, would beat the worst of the answers that have ended."""
    NEVER = "never"
    """When no beam could beat it at any length that is still possible."""


class BeamSearch(Struct, frozen=True, kw_only=True):
    """Keep the `width` likeliest outputs at every length and answer with the best that ended.

    An output is worth the sum of its tokens' log-probabilities divided by its length to the power of
    `length_penalty`, its end token counted. Nothing is drawn.
    """

    width: Annotated[int, Meta(ge=1, le=MAX_BEAMS)]
    length_penalty: Annotated[float, Meta(ge=-10.0, le=10.0)] = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC
