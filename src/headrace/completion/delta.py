"""What a choice gains: a piece of its answer, or its end."""

from collections.abc import Sequence

from msgspec import Struct

from headrace.completion.prompt_report import PromptReport
from headrace.core.events import FinishReason, TokenLogprobs


class CallDelta(Struct, frozen=True, kw_only=True):
    """More of one call of a tool."""

    index: int
    """Number of the call within its choice."""
    id: str | None = None
    """With `name`, on the call's first delta only."""
    name: str | None = None
    arguments: str = ""
    """More of the JSON text."""


class Delta(Struct, frozen=True, kw_only=True):
    """What a choice gained: never a broken character, never part of a stop string."""

    index: int
    text: str = ""
    """For the user; where nothing is read out of the answer, all of it."""
    thought: str = ""
    """Reasoning."""
    calls: tuple[CallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """As many as `token_ids` when the request asked for them, else none."""
    prompt: PromptReport | None = None
    """On a choice's first delta, where the client wants to know."""
    text_offsets: tuple[int, ...] = ()
    """With `logprobs`: characters of the choice's text before each token."""
    finish: FinishReason | None = None
    has_called: bool = False
    """With `finish`: the choice holds a call."""
    stop_reason: str | int | None = None
    """The stop string or the requested stop token that ended it; None for the model's own end."""
    error: str | None = None
    error_kind: str | None = None
    """Name of a class in `core.errors`, with `error`."""


def join(index: int, deltas: Sequence[Delta]) -> Delta:
    """One delta that says what all of them say."""
    last = deltas[-1] if deltas else Delta(index=index)
    return Delta(
        index=index,
        text="".join(delta.text for delta in deltas),
        thought="".join(delta.thought for delta in deltas),
        calls=join_calls([call for delta in deltas for call in delta.calls]),
        token_ids=tuple(number for delta in deltas for number in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt=next((delta.prompt for delta in deltas if delta.prompt is not None), None),
        text_offsets=tuple(offset for delta in deltas for offset in delta.text_offsets),
        finish=last.finish,
        has_called=last.has_called,
        stop_reason=last.stop_reason,
        error=last.error,
        error_kind=last.error_kind,
    )


def join_calls(calls: Sequence[CallDelta]) -> tuple[CallDelta, ...]:
    """One delta a call, in the order in which they began."""
    parts: dict[int, list[CallDelta]] = {}
    for call in calls:
        parts.setdefault(call.index, []).append(call)
    return tuple(
        CallDelta(
            index=index,
            id=found[0].id,
            name=found[0].name,
            arguments="".join(call.arguments for call in found),
        )
        for index, found in parts.items()
    )
