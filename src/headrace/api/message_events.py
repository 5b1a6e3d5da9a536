"""Events of a streamed `POST /v1/messages`, in the order of their lives."""

from msgspec import Struct

from headrace.api.messages import AnswerBlock, ErrorBody, Message, MessageUsage


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    """First: the message without its content."""

    message: Message


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing; after the start, as Anthropic sends it."""


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: AnswerBlock


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of what the model thinks."""

    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The end of a thinking block; always empty."""

    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


class BlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block ends."""

    index: int


class MessageEnd(Struct, frozen=True):
    """Why the message ended."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end and the cost."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """Last."""


MessageEvent = (
    MessageStart
    | Ping
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | ErrorBody
)
