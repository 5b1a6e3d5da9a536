"""Beam search as pure decisions: which extensions go on, which outputs are kept, when it is over.

The rules are those of transformers' `generate(num_beams=...)`: of all extensions of all beams by one token,
best first, those among the first `width` that end are answers; the first `width` that do not end go on. So
for the same log-probabilities the answers are the same.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

from headrace.core.beams import BeamSearch, EarlyStopping
from headrace.core.events import FinishReason, TokenLogprobs


class Extension(NamedTuple):
    """One beam and one more token."""

    score: float
    """Sum of log-probabilities, this token's included."""
    parent: int
    """Index of the beam."""
    token_id: int
    logprob: float
    rank: int
    """Among the continuations of its beam; 1 is the likeliest."""


class Answer(NamedTuple):
    """An output that has ended."""

    score: float
    """With the length penalty."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: FinishReason
    stop_token_id: int | None


def extensions(
    scores: Sequence[float], reports: Sequence[TokenLogprobs], masked: Container[int]
) -> list[Extension]:
    """All reported extensions of all beams, best first; beams are given best first. No `masked` token."""
    found = [
        Extension(score + logprob, parent, token_id, logprob, rank)
        for parent, (score, report) in enumerate(zip(scores, reports, strict=True))
        for rank, (token_id, logprob) in enumerate(report.top, start=1)
        if token_id not in masked and logprob > float("-inf")
    ]
    found.sort(key=lambda extension: -extension.score)  # stable: ties go to the better beam
    return found


def split(
    found: Sequence[Extension], stop_ids: Container[int], width: int, *, is_last: bool
) -> tuple[list[Extension], list[Extension]]:
    """(those that go on, those that end here). With `is_last` there is no room for another token."""
    if is_last:
        return [], list(found[:width])
    ending = [extension for extension in found[:width] if extension.token_id in stop_ids]
    going = [extension for extension in found if extension.token_id not in stop_ids]
    return going[:width], ending


def penalised(score: float, length: int, length_penalty: float) -> float:
    """What an output of `length` tokens (at least 1) is worth."""
    return float(score / length**length_penalty)


def keep_best(answers: Sequence[Answer], ended: Sequence[Answer], width: int) -> list[Answer]:
    """The best `width` answers, best first; among equals those that ended sooner."""
    merged = [*answers, *ended]
    merged.sort(key=lambda answer: -answer.score)
    return merged[:width]


def is_over(
    search: BeamSearch,
    answers: Sequence[Answer],
    best_score: float | None,
    length: int,
    max_length: int,
) -> bool:
    """Whether the answers are final. `best_score` is the best beam's sum; None when no beam goes on.

    `length` tokens have been made of at most `max_length`.
    """
    if best_score is None:
        return True
    if len(answers) < search.width:
        return False
    if search.early_stopping is EarlyStopping.FULL:
        return True
    is_patient = search.early_stopping is EarlyStopping.NEVER and search.length_penalty > 0.0
    possible = penalised(best_score, max_length if is_patient else length, search.length_penalty)
    return possible <= answers[-1].score
