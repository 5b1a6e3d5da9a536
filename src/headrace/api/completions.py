"""`POST /v1/completions`: the request, the response (a stream's chunks have the same shape)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.api.fields import GenerationFields, TokenId
from headrace.api.prompts import PromptLogprobs
from headrace.api.telemetry import PromptProgress, Timings
from headrace.api.usage import Usage
from headrace.core.errors import BadRequestError

#: Prompts in one request.
MAX_PROMPTS = 128

Prompt = str | list[int]


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]]
    """Text, token ids, or a list of either."""
    max_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """0 computes the prompt and makes nothing: for `echo` with `logprobs`, or to fill the cache."""
    best_of: Annotated[int, Meta(ge=1)] | None = None
    """Make so many answers and give the `n` whose tokens have the largest mean log-probability."""
    echo: bool | None = None
    """The prompt in front of each answer; with `logprobs`, the prompt's too."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """llama.cpp's `logprobs`; 0 asks for none."""
    add_special_tokens: bool | None = None
    """Put the tokenizer's own marks (such as a beginning-of-sequence token) around text; default yes."""

    # Refused unless harmless: see `api.unsupported`.
    suffix: Any = None
    prompt_embeds: Any = None

    def prompts(self) -> list[Prompt]:
        """The prompts, each text or token ids. Raises BadRequestError for none, empty or mixed ones."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return _split(self.prompt)


def _split(items: list[str | int | list[int]]) -> list[Prompt]:
    if not items:
        raise BadRequestError("'prompt' is empty; give text or token ids.", param="prompt")
    if all(isinstance(item, int) for item in items):
        return [[item for item in items if isinstance(item, int)]]
    if any(isinstance(item, int) for item in items):
        raise BadRequestError(
            "'prompt' mixes token ids with other items; give one list of token ids, a list of "
            "texts, or a list of lists of token ids.",
            param="prompt",
        )
    if len(items) > MAX_PROMPTS:
        raise BadRequestError(
            f"'prompt' has {len(items)} items; at most {MAX_PROMPTS} are taken in one request.",
            param="prompt",
        )
    prompts: list[Prompt] = []
    for position, item in enumerate(items):
        if isinstance(item, list) and not item:
            raise BadRequestError(
                f"'prompt[{position}]' is an empty list of token ids.", param=f"prompt[{position}]"
            )
        if not isinstance(item, int):
            prompts.append(item)
    return prompts


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of a choice, or of a chunk's tokens; four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    """Null, as above, for the first token of a prompt."""
    text_offset: list[int]
    """Characters of the choice's text before each token."""


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One answer; in a stream, what one chunk adds to it."""

    index: int
    """Prompt number times n, plus the number of the answer."""
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    """The stop string or token id that ended it (vLLM); absent when none did."""
    token_ids: list[int] | UnsetType = UNSET
    """With `return_token_ids`, and the next too; in a stream that on the first chunk only."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The response, and each chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    """With `timings_per_token`, of the first or the chunk's choice (llama.cpp)."""
    prompt_progress: PromptProgress | UnsetType = UNSET
    """With `return_progress`, before the first token (llama.cpp)."""
