"""`/v1/responses`: the request, its items, and the response, as OpenAI has them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.api.chat import MAX_MESSAGES, MAX_PARTS, ChatLogprob, RefusalPart
from headrace.api.fields import GenerationFields

MAX_FUNCTIONS = 128
Status = Literal["completed", "incomplete", "in_progress", "failed", "cancelled", "queued"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]

# -- content ----------------------------------------------------------------------------------------


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """A piece of text that was given."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """A piece of text that was made."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] | None = []


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    """What others made of a model's thought."""

    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image. Decoded so that the refusal can say so."""

    image_url: Any = None


class InputFile(Struct, frozen=True, tag_field="type", tag="input_file"):
    """A file. Decoded so that the refusal can say so."""

    file_id: Any = None


class InputSound(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Sound. Decoded so that the refusal can say so."""

    input_audio: Any = None


ItemContent = (
    InputText
    | OutputText
    | RefusalPart
    | ReasoningText
    | SummaryText
    | InputImage
    | InputFile
    | InputSound
)
Contents = Annotated[list[ItemContent], Meta(max_length=MAX_PARTS)]


# -- the request ------------------------------------------------------------------------------------


class InputItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of a conversation; `type` says which fields it has.

    message: role, content. function_call: call_id, name, arguments. function_call_output: call_id, output.
    reasoning: content or summary. item_reference: the id of an item of a stored response.
    """

    type: str | None = None
    """message where it is left out."""
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Contents | None = None
    phase: str | None = None
    """Taken and not used."""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Contents | None = None
    summary: Contents | None = None


class FunctionTool(Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: str = "function"
    """No other tools are run here."""
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    """How the model reasons."""

    effort: str | None = None
    """Handed to the chat template; none turns thinking off where the template can."""
    summary: str | None = None
    """Taken and not used: reasoning is shown as it is."""


class TextOptionsField(Struct, frozen=True, kw_only=True):
    """The form of the text."""

    format: dict[str, Any] | None = None
    """Type text, json_object, or json_schema with `name`, `schema` and `strict`."""
    verbosity: str | None = None
    """Taken and not used."""


class ResponsesFields(GenerationFields, frozen=True, kw_only=True):
    """What makes the prompt; every sampling field of the other routes is taken too."""

    input: str | Annotated[list[InputItem], Meta(max_length=MAX_MESSAGES)] | None = None
    """A text of the user's, or items."""
    instructions: str | None = None
    """A system message before everything; not kept for the next response."""
    previous_response_id: str | None = None
    """The conversation goes on behind that response."""
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_FUNCTIONS)] | None = None
    tool_choice: Any = None
    """none, auto, required, a function's name, or allowed tools."""
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptionsField | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """For the chat template, as vLLM has it."""
    max_output_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """Whether prompts are cut is the operator's to say; both words are taken."""

    # Refused where they ask for something.
    conversation: Any = None
    prompt: Any = None


class ResponsesRequest(ResponsesFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    store: bool | None = None
    """False: it cannot be asked for, nor gone on from; default yes."""
    background: bool | None = None
    """Answer at once, and work on without the client."""
    metadata: Metadata | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs`; other words are ignored."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    """Given back: it bounds tools that are not run here."""

    # Taken and given back.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None


# -- the response -----------------------------------------------------------------------------------


class OutputMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought."""

    id: str
    status: ItemStatus
    summary: list[SummaryText] = []
    content: list[ReasoningText]


class FunctionCallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model makes."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputDetails(Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class OutputDetails(Struct, frozen=True):
    """What the answer's tokens were spent on."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Counts of token ids."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    """Why a response was cut: max_output_tokens; timeout or shutdown, which OpenAI does not know."""

    reason: str


class Response(Struct, frozen=True, kw_only=True):
    """A response, as far as it has come."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningOptions
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextOptionsField
    tool_choice: Any
    tools: list[FunctionTool]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | UnsetType = UNSET


class DeletedResponse(Struct, frozen=True, kw_only=True):
    """A response that is no more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(Struct, frozen=True, kw_only=True):
    """Items of a response's input."""

    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
