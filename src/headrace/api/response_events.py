"""Events of a streamed `POST /v1/responses`. Numbers count from 0 and have no gaps."""

from msgspec import UNSET, Struct, UnsetType

from headrace.api.chat import ChatLogprob
from headrace.api.responses import OutputItem, OutputText, ReasoningText, Response
from headrace.api.telemetry import PromptProgress, Timings


class Numbered(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all events have."""

    sequence_number: int
    timings: Timings | UnsetType = UNSET
    """With `timings_per_token`, on pieces of text and at the end (llama.cpp)."""


class ResponseCreated(Numbered, frozen=True, tag="response.created"):
    """First: the response, empty."""

    response: Response


class ResponseInProgress(Numbered, frozen=True, tag="response.in_progress"):
    """It is being made."""

    response: Response
    prompt_progress: PromptProgress | UnsetType = UNSET
    """With `return_progress`, on further events of this kind before the first token (llama.cpp)."""


class ResponseCompleted(Numbered, frozen=True, tag="response.completed"):
    """Last: the whole response."""

    response: Response


class ResponseIncomplete(Numbered, frozen=True, tag="response.incomplete"):
    """Last: the response, cut by a limit."""

    response: Response


class ResponseFailed(Numbered, frozen=True, tag="response.failed"):
    """Last: what there was before it failed or was cancelled."""

    response: Response


class ItemAdded(Numbered, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins, empty."""

    output_index: int
    item: OutputItem


class ItemDone(Numbered, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is as it will be."""

    output_index: int
    item: OutputItem


class OfItem(Numbered, frozen=True, kw_only=True):
    """What events inside an item have."""

    item_id: str
    output_index: int


class PartAdded(OfItem, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part of an item's content begins, empty."""

    content_index: int = 0
    part: OutputText | ReasoningText


class PartDone(OfItem, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part is as it will be."""

    content_index: int = 0
    part: OutputText | ReasoningText


class OutputTextDelta(OfItem, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    content_index: int = 0
    delta: str
    logprobs: list[ChatLogprob]


class OutputTextDone(OfItem, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All of the text."""

    content_index: int = 0
    text: str
    logprobs: list[ChatLogprob]


class ReasoningTextDelta(OfItem, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of what the model thinks."""

    content_index: int = 0
    delta: str


class ReasoningTextDone(OfItem, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All that it thought."""

    content_index: int = 0
    text: str


class ArgumentsDelta(
    OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of the JSON text of a call's arguments."""

    delta: str


class ArgumentsDone(OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """All of the arguments."""

    name: str
    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
)
