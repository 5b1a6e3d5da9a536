"""`/tokenize`, `/detokenize`, `/apply-template` and counting: in vLLM's words and in llama.cpp's."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headrace.api.chat import ChatRequest
from headrace.api.fields import TokenId

#: Items of one `content`.
MAX_ITEMS = 65_536


class TokenizeContent(Struct, frozen=True, kw_only=True):
    """llama.cpp's: texts and token ids, joined."""

    content: str | Annotated[list[str | TokenId], Meta(max_length=MAX_ITEMS)]
    add_special: bool | None = None
    """Put the tokenizer's own marks around; default no."""
    parse_special: bool | None = None
    """Special tokens in the text are those tokens, and not text; default yes."""
    with_pieces: bool | None = None
    """Show what each token stands for."""
    model: str | None = None


class TokenizePrompt(Struct, frozen=True, kw_only=True):
    """vLLM's for a text: what `/v1/completions` would make of it."""

    prompt: str
    add_special_tokens: bool | None = None
    """Put the tokenizer's own marks around; default yes."""
    return_token_strs: bool | None = None
    model: str | None = None


class TokenizeChat(ChatRequest, frozen=True, kw_only=True):
    """vLLM's for a conversation: what `/v1/chat/completions` would make of it."""

    add_special_tokens: bool | None = None
    """Has no effect: the template writes the marks."""
    return_token_strs: bool | None = None


class Piece(Struct, frozen=True):
    """One token and its text, or its bytes where they are no text."""

    id: int
    piece: str | list[int]


class ContentTokens(Struct, frozen=True, kw_only=True):
    """llama.cpp's answer."""

    tokens: list[int | Piece]


class PromptTokens(Struct, frozen=True, kw_only=True):
    """vLLM's answer."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    """The text of each token; bytes that are no text are U+FFFD."""


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Token ids; both dialects write this the same way."""

    tokens: list[TokenId]
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; default no."""
    model: str | None = None


class Detokenized(Struct, frozen=True, kw_only=True):
    """The text, under the name of either dialect."""

    prompt: str
    content: str


class Rendered(Struct, frozen=True, kw_only=True):
    """What the chat template wrote."""

    prompt: str


class InputTokens(Struct, frozen=True, kw_only=True):
    """How many tokens a conversation has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class GenerationSettings(Struct, frozen=True, kw_only=True):
    """Of llama.cpp's, those that clients read."""

    n_ctx: int
    """Tokens of prompt and answer together."""


class Modalities(Struct, frozen=True, kw_only=True):
    """What a message may hold beside text."""

    vision: bool = False
    audio: bool = False


class Props(Struct, frozen=True, kw_only=True):
    """The body of llama.cpp's `/props`, as far as clients need it."""

    default_generation_settings: GenerationSettings
    total_slots: int
    """Sequences that can run at once."""
    model_alias: str
    model_path: str
    """The model's name: where it lies is nobody's business."""
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities = Modalities()
    build_info: str


class TokenizerInfo(Struct, frozen=True, kw_only=True):
    """vLLM's `/tokenizer_info`, as far as clients need it."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    """The end-of-sequence token: nothing here is padded."""
    chat_template: str


class AbortRequest(Struct, frozen=True, kw_only=True):
    """Whose end is wanted: ids of answers, or names that clients gave in `x-request-id`."""

    request_id: str | Annotated[list[str], Meta(max_length=1024)] | None = None
    request_ids: Annotated[list[str], Meta(max_length=1024)] | None = None
    """vLLM's name for a list."""
    rid: str | Annotated[list[str], Meta(max_length=1024)] | None = None
    """SGLang's name."""
    abort_all: bool | None = None
    """Everything that this API key has running (SGLang)."""
    abort_message: Any = None

    def names(self) -> list[str]:
        """All that are named, whatever the field."""
        named: list[str] = []
        for value in (self.request_id, self.request_ids, self.rid):
            named += [value] if isinstance(value, str) else value or []
        return list(dict.fromkeys(named))


class Aborted(Struct, frozen=True, kw_only=True):
    """What came to its end."""

    aborted: list[str]
    """Of the names that were given, those of running requests."""
    num_aborted: int
    """Requests that were ended."""
