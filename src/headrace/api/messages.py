"""`POST /v1/messages` and `/v1/messages/count_tokens`: requests, answers and errors, as Anthropic has them."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headrace.api.chat import MAX_MESSAGES, MAX_PARTS
from headrace.api.fields import GenerationFields, StopList

MAX_SCHEMA_TOOLS = 128


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    citations: list[Any] | None = None


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought. The signature is empty: nothing here is checked by it."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Thought that only Anthropic can read: left out of the prompt."""

    data: str = ""


class Caller(Struct, frozen=True):
    """Who calls a tool: here always the model itself."""

    type: str = "direct"


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any] = {}
    caller: Caller = Caller()


class ImageBlock(Struct, frozen=True, tag_field="type", tag="image"):
    """An image. Decoded so that the refusal can say so."""

    source: Any = None


class DocumentBlock(Struct, frozen=True, tag_field="type", tag="document"):
    """A document. Decoded so that the refusal can say so."""

    source: Any = None


ResultContent = TextBlock | ImageBlock | DocumentBlock


class ToolResultBlock(Struct, frozen=True, tag_field="type", tag="tool_result"):
    """What a tool answered."""

    tool_use_id: str
    content: str | Annotated[list[ResultContent], Meta(max_length=MAX_PARTS)] | None = None
    is_error: bool | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
)


class InputMessage(Struct, frozen=True, kw_only=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)]


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    name: str
    type: str | None = None
    """custom, or nothing; Anthropic's own tools are not run here."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class ToolChoice(Struct, frozen=True, kw_only=True):
    """Whether tools may, must or must not be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """With `tool`: which one."""
    disable_parallel_tool_use: bool | None = None
    """True: at most one call."""


class ThinkingConfig(Struct, frozen=True, kw_only=True):
    """Whether the model reasons, and for how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Tokens of reasoning after which its end is forced."""
    display: Literal["summarized", "omitted"] | None = None
    """omitted leaves reasoning out of the answer; summarized shows it as it is."""


class RequestMetadata(Struct, frozen=True, kw_only=True):
    """About the request."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None
    """Taken and not used."""


class OutputConfig(Struct, frozen=True, kw_only=True):
    """The form of the answer."""

    format: Any = None
    """`{"type": "json_schema", "schema": …}`."""
    effort: str | None = None
    """Handed to the chat template."""


class MessagesFields(GenerationFields, frozen=True, kw_only=True):
    """What makes the prompt; every sampling field of the other routes is taken too."""

    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Meta(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_SCHEMA_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    stop_sequences: StopList | None = None
    metadata: RequestMetadata | None = None
    output_config: OutputConfig | None = None
    output_format: Any = None
    """As `output_config.format`, which is newer."""
    chat_template_kwargs: dict[str, Any] | None = None
    """For the chat template, as vLLM has it."""

    # Harmless here: taken and not used.
    cache_control: Any = None
    context_management: Any = None
    service_tier: Any = None
    inference_geo: Any = None
    # Refused where they ask for something.
    container: Any = None
    mcp_servers: Any = None


class MessagesRequest(MessagesFields, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)]


class CountTokensRequest(MessagesFields, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`."""


class TokenCount(Struct, frozen=True, kw_only=True):
    """How many tokens the prompt has."""

    input_tokens: int


class TokenDetails(Struct, frozen=True):
    """What the answer's tokens were spent on."""

    thinking_tokens: int


class MessageUsage(Struct, frozen=True, kw_only=True):
    """What the answer cost."""

    input_tokens: int
    """Those that were computed: neither read from a cache nor written to one that is paid for."""
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: TokenDetails
    cache_creation: None = None
    inference_geo: None = None
    server_tool_use: None = None
    service_tier: str = "standard"


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Message(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    """end_turn, max_tokens, stop_sequence or tool_use."""
    stop_sequence: str | None
    stop_details: None = None
    usage: MessageUsage
    container: None = None


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """What went wrong."""

    type: str
    message: str


class ErrorBody(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The body of an error, and the data of an error inside a stream."""

    error: ErrorDetail
    request_id: str | None = None
