"""What new tokens mean for a sequence: pure."""

from collections.abc import Container
from typing import NamedTuple

from headrace.core.errors import GrammarError, HeadraceError, InternalError
from headrace.core.events import FinishReason
from headrace.core.step import RowResult


class Outcome(NamedTuple):
    """How many of the new tokens count, and whether the last of them ends the sequence."""

    num_kept: int
    finish: FinishReason | None
    stop_token_id: int | None


def fault_of(row: RowResult, num_draft: int) -> HeadraceError | None:
    """Why the tokens of a row that should give some cannot be taken; None when they can."""
    if row.dead_end is not None:
        return GrammarError(row.dead_end)
    if not 1 <= len(row.token_ids) <= num_draft + 1:
        return InternalError("A step gave the wrong number of tokens.")
    return None


def judge(
    token_ids: tuple[int, ...], stop_ids: Container[int], room: int, *, is_complete: bool = False
) -> Outcome:
    """Take tokens up to the first that ends the sequence: a stop token, or the `room`-th one.

    `is_complete`: nothing may follow the last of them, so it ends there, whatever room is left.
    `room` is 0 only where no output was wanted: a sequence without room has ended before.
    """
    if room == 0:
        return Outcome(0, FinishReason.LENGTH, None)
    for count, token_id in enumerate(token_ids, start=1):
        if token_id in stop_ids:
            return Outcome(count, FinishReason.STOP, token_id)
        if count == room and not (is_complete and count == len(token_ids)):
            return Outcome(count, FinishReason.LENGTH, None)
    return Outcome(len(token_ids), FinishReason.STOP if is_complete else None, None)
