"""What is told of sequences: their events, and how a request ends whose time is up."""

from headrace.core.errors import DeadlineExceededError, HeadraceError, OverloadedError
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request
from headrace.core.step import RowResult
from headrace.engine.scheduler.plan import PlannedRow
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup


def time_out(group: SequenceGroup, now: float) -> tuple[FinishReason | None, HeadraceError | None]:
    """How a request whose deadline or queue time passed ends; None: it does not (it began in time)."""
    request = group.request
    is_late = request.deadline is not None and now >= request.deadline
    if group.first_scheduled is not None:
        return (FinishReason.TIMEOUT if is_late else None), None
    if is_late:
        return FinishReason.ERROR, DeadlineExceededError(
            "The request's time ran out before its first step."
        )
    return FinishReason.ERROR, OverloadedError(
        f"The request waited longer than {request.max_queue_time:g} seconds for its first step."
    )


def scored_event(planned: PlannedRow, row: RowResult) -> TokenEvent:
    """What a row says of the prompt, but for what was said before.

    After preemption, or when another sequence of the request takes over, positions run again.
    """
    sequence, group = planned.sequence, planned.sequence.group
    news = row.prompt_logprobs[group.num_scored - planned.start :]
    group.num_scored += len(news)
    return TokenEvent(group.request.request_id, sequence.index, prompt_logprobs=news)


def progress_event(sequence: Sequence) -> TokenEvent | None:
    """How far its prompt is, where that is wanted and no token has come yet."""
    request = sequence.group.request
    if not request.wants_progress or sequence.has_reported:
        return None
    return TokenEvent(
        request.request_id,
        sequence.index,
        num_cached_tokens=sequence.num_cached,
        num_prompt_computed=min(sequence.num_computed, sequence.group.num_prompt),
    )


def event_of(
    sequence: Sequence,
    token_ids: tuple[int, ...],
    logprobs: tuple[TokenLogprobs, ...] = (),
    stop_token_id: int | None = None,
    error: HeadraceError | None = None,
) -> TokenEvent:
    """What a sequence gained, or its end."""
    is_first = not sequence.has_reported
    sequence.has_reported = True
    finish = sequence.finish
    return TokenEvent(
        request_id=sequence.group.request.request_id,
        index=sequence.index,
        token_ids=token_ids,
        logprobs=logprobs,
        finish=finish,
        stop_token_id=stop_token_id,
        num_cached_tokens=sequence.num_cached if is_first else 0,
        times=sequence.times if is_first or finish is not None else None,
        error=None if error is None else str(error),
        error_kind=None if error is None else type(error).__name__,
    )


def refused_event(request: Request, index: int, error: HeadraceError) -> TokenEvent:
    """The end of a sequence that never began."""
    return TokenEvent(
        request_id=request.request_id,
        index=index,
        finish=FinishReason.ERROR,
        error=str(error),
        error_kind=type(error).__name__,
    )
