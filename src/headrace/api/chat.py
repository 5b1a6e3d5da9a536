"""`POST /v1/chat/completions`: the request, the response and the stream's chunks, as OpenAI has them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.api.fields import GenerationFields
from headrace.api.prompts import PromptLogprobs
from headrace.api.telemetry import PromptProgress, Timings
from headrace.api.usage import Usage

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TEMPLATE_CHARS = 65_536

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What the assistant refused earlier."""

    refusal: str


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image. Decoded so that the refusal can say so."""

    image_url: Any = None


class AudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Sound. Decoded so that the refusal can say so."""

    input_audio: Any = None


class FilePart(Struct, frozen=True, tag_field="type", tag="file"):
    """A file. Decoded so that the refusal can say so."""

    file: Any = None


ContentPart = TextPart | RefusalPart | ImagePart | AudioPart | FilePart


class FunctionCall(Struct, frozen=True):
    """The name of a function and its arguments, as JSON text or as the object that it stands for."""

    name: str
    arguments: str | dict[str, Any] | None = ""


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of the conversation."""

    role: Role
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    """A call as before there were tools."""
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Wins over `max_tokens`, as at OpenAI."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Annotated[str, Meta(max_length=MAX_TEMPLATE_CHARS)] | None = None
    """Replaces the model's own, where the operator allows that."""
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    """Handed to the chat template."""

    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call; checked by `preprocess.tools.offer`."""
    tool_choice: Any = None
    """none, auto, required, or an object that names a function."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
    functions: list[dict[str, Any]] | None = None
    """As before there were tools."""
    function_call: Any = None
    """none, auto, or an object that names a function."""

    include_reasoning: bool | None = None
    """False leaves reasoning out of the answer."""
    max_thinking_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """Tokens of reasoning after which its end is forced; 0 ends it at once."""
    thinking_budget: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """The same, as Qwen and SGLang name it; -1 sets no bound."""
    thinking_token_budget: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """The same, as vLLM names it."""

    # Known to other servers, refused here unless harmless: see `api.unsupported`.
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    documents: Any = None
    echo: Any = None
    best_of: Any = None


class TopLogprob(Struct, frozen=True):
    """An alternative at one position."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(Struct, frozen=True):
    """The chosen token of one position."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Log-probabilities of a choice, or of a chunk's tokens."""

    content: list[ChatLogprob]
    refusal: None = None


class CalledFunction(Struct, frozen=True):
    """A function and its arguments as JSON text."""

    name: str
    arguments: str


class MadeCall(Struct, frozen=True, kw_only=True):
    """A call that the assistant makes."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ResponseMessage(Struct, frozen=True, kw_only=True):
    """What the assistant said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: ResponseMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: int | str | UnsetType | None = UNSET
    """The stop string or token id that ended it (vLLM); absent when none did."""
    token_ids: list[int] | UnsetType = UNSET
    """With `return_token_ids`."""


class VerbosePrompt(Struct, frozen=True, kw_only=True):
    """What the model was given."""

    prompt: str
    """Special tokens are spelt out."""


class ChatCompletion(Struct, frozen=True, kw_only=True, rename={"verbose": "__verbose"}):
    """The whole response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    """With `return_token_ids`."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    """With `timings_per_token`, of the first choice (llama.cpp)."""
    verbose: VerbosePrompt | UnsetType = UNSET
    """With `verbose` (llama.cpp)."""


class FunctionDelta(Struct, frozen=True, kw_only=True):
    """What one chunk adds to a call: its name, once, or more of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """What one chunk adds to the call with this index; id and type come with the name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(Struct, frozen=True, kw_only=True):
    """What one chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """One choice in a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a stream: first a role, then content, then a finish reason with an empty delta."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    """Null on every chunk but the last when the client asked for usage, else absent."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """With `return_token_ids`, on the first chunk of each choice."""
    timings: Timings | UnsetType = UNSET
    """With `timings_per_token`, of the chunk's choice (llama.cpp)."""
    prompt_progress: PromptProgress | UnsetType = UNSET
    """With `return_progress`, before the first token (llama.cpp)."""
