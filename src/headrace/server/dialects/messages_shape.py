"""Chat's deltas → Anthropic's message, whole or as events."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from headrace.api.message_events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from headrace.api.messages import (
    AnswerBlock,
    Message,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    TokenDetails,
    ToolUseBlock,
)
from headrace.api.usage import Usage
from headrace.completion.delta import Delta
from headrace.completion.parts import Grown, Opened, Part, PartKind, Parts, Step
from headrace.core.events import FinishReason
from headrace.server.shapes import Head
from headrace.web.error_shapes import anthropic_error
from headrace.web.problems import answer_to
from headrace.web.streaming import Framing, named_event

#: Anthropic's streams end with `message_stop`; there is no `[DONE]`.
FRAMING = Framing(event=named_event, end=b"")


class MessagesShape:
    """Part of Shape, for one answer. A stream has a start and a ping, its blocks in a row, its end."""

    framing = FRAMING
    telemetry = None

    def __init__(self, head: Head) -> None:
        self._head = head
        self._parts = Parts()
        self._encoder = msgspec.json.Encoder()

    def chunks(
        self, choice: int, delta: Delta, *, is_first: bool, usage: Callable[[], Usage]
    ) -> list[bytes]:
        """Part of Shape."""
        events: list[MessageEvent] = []
        if is_first:
            events += [MessageStart(self._message([], None, usage())), Ping()]
        for step in self._parts.push(delta):
            events += _step_events(step)
        if delta.finish is not None and not _has_failed(delta):
            end = MessageEnd(stop_reason(delta), _stop_sequence(delta))
            events += [MessageDelta(end, usage_of(usage())), MessageStop()]
        return [self._encoder.encode(event) for event in events]

    def last_chunk(self, usage: Callable[[], Usage]) -> bytes | None:
        """Part of Shape: the end of the only choice is the end."""
        return None

    def failure(self, error: Exception, usage: Callable[[], Usage]) -> list[bytes]:
        """Part of Shape."""
        return [self._encoder.encode(anthropic_error(answer_to(error)))]

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """Part of Shape."""
        (delta,) = choices
        self._parts.push(delta)
        blocks = [_block(part) for part in self._parts.all]
        return self._encoder.encode(self._message(blocks, delta, usage))

    def _message(self, blocks: list[AnswerBlock], end: Delta | None, usage: Usage) -> Message:
        return Message(
            id=self._head.id,
            model=self._head.model,
            content=blocks,
            stop_reason=None if end is None else stop_reason(end),
            stop_sequence=None if end is None else _stop_sequence(end),
            usage=usage_of(usage),
        )


def usage_of(usage: Usage) -> MessageUsage:
    """The prompt's tokens in two: those that were computed, and those that came from the prefix cache."""
    given, made = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = 0 if given is UNSET else given.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=TokenDetails(0 if made is UNSET else made.reasoning_tokens),
    )


def stop_reason(delta: Delta) -> str:
    """Anthropic's word for an end."""
    if delta.finish is not FinishReason.STOP:
        return "max_tokens"
    if delta.has_called:
        return "tool_use"
    return "end_turn" if _stop_sequence(delta) is None else "stop_sequence"


def _stop_sequence(delta: Delta) -> str | None:
    return delta.stop_reason if isinstance(delta.stop_reason, str) else None


def _has_failed(delta: Delta) -> bool:
    return delta.finish in (FinishReason.ERROR, FinishReason.CANCELLED)


def _step_events(step: Step) -> list[MessageEvent]:
    part = step.part
    if isinstance(step, Opened):
        return [BlockStart(part.place, _empty_block(part))]
    if isinstance(step, Grown):
        return [BlockDelta(part.place, _block_delta(part.kind, step.text))]
    stop = BlockStop(part.place)
    if part.kind is PartKind.THOUGHT:
        return [BlockDelta(part.place, SignatureDelta("")), stop]
    return [stop]


def _empty_block(part: Part) -> AnswerBlock:
    if part.kind is PartKind.THOUGHT:
        return ThinkingBlock("")
    if part.kind is PartKind.TEXT:
        return TextBlock("")
    return ToolUseBlock(part.call_id, part.name, {})


def _block_delta(kind: PartKind, text: str) -> TextDelta | ThinkingDelta | InputJsonDelta:
    if kind is PartKind.THOUGHT:
        return ThinkingDelta(text)
    return TextDelta(text) if kind is PartKind.TEXT else InputJsonDelta(text)


def _block(part: Part) -> AnswerBlock:
    if part.kind is PartKind.THOUGHT:
        return ThinkingBlock(part.text)
    if part.kind is PartKind.TEXT:
        return TextBlock(part.text)
    return ToolUseBlock(part.call_id, part.name, _input(part.text))


def _input(arguments: str) -> dict[str, Any]:
    """The object that the text stands for; empty where the answer was cut before its end."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
