"""Specification of DRY ("don't repeat yourself", P. E. Weidmann, 2024): what a repetition's next token loses.

Of the history, the last `window` tokens count. A repetition is what they end with if that occurs earlier
among them, too; it never reaches back across a breaker. The token that followed it there would go on with it:
`multiplier * base ** (n - allowed_length)` is subtracted from its logit, where n, the length of the longest such
repetition, is at least `allowed_length`. Breakers themselves lose nothing. Ids outside the vocabulary (media
placeholders) are breakers.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.values import DryBatch

#: A logit stays finite.
LARGEST_PENALTY = 1e30


def dry_penalties(
    history: Sequence[int], dry: DryBatch, row: int, vocab_size: int
) -> dict[int, np.float32]:
    """What to subtract, by token id."""
    window = int(dry.window[row])
    tokens = list(history[max(0, len(history) - window) :])
    flags = breaker_flags(tokens, dry, int(dry.sets[row]), vocab_size)
    ends = word_ends(tokens, dry.words[dry.sets[row]])
    reach = 0
    while reach < len(tokens) and not (flags[-1 - reach] or ends[-1 - reach]):
        reach += 1
    longest: dict[int, int] = {}
    for place in range(1, len(tokens)):
        length = 0
        while length < min(reach, place) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if not flags[place]:
            longest[tokens[place]] = max(longest.get(tokens[place], 0), length)
    allowed = int(dry.allowed_length[row])
    multiplier, base = float(dry.multiplier[row]), float(dry.base[row])
    return {
        token: np.float32(min(multiplier * power(base, length - allowed), LARGEST_PENALTY))
        for token, length in longest.items()
        if length >= allowed
    }


def breaker_flags(tokens: Sequence[int], dry: DryBatch, chosen: int, vocab_size: int) -> list[bool]:
    """Which of the tokens are breakers on their own."""
    bits = np.unpackbits(dry.breakers[chosen].view(np.uint8), bitorder="little")
    return [not 0 <= token < vocab_size or bool(bits[token]) for token in tokens]


def word_ends(tokens: Sequence[int], words: NDArray[np.int32]) -> list[bool]:
    """At which of the tokens a breaker of several tokens ends."""
    spelt = list(split_words(words.tolist()))
    return [
        any(tuple(tokens[max(0, end - len(word)) : end]) == word for word in spelt)
        for end in range(1, len(tokens) + 1)
    ]


def split_words(words: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The words of a row of `DryBatch.words`."""
    place = 0
    while place < len(words) and words[place] > 0:
        yield tuple(words[place + 1 : place + 1 + words[place]])
        place += 1 + words[place]


def power(base: float, exponent: int) -> float:
    """The power by squaring: products in an order that other back ends can repeat exactly."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
