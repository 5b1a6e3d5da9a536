"""`POST /completion` as llama.cpp's server has it: the request, the answer, and what a stream says."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.api.fields import GenerationFields
from headrace.api.telemetry import PromptProgress, Timings

MAX_RESPONSE_FIELDS = 64


class LlamaRequest(GenerationFields, frozen=True, kw_only=True):
    """The body. Every sampling field of the other routes is taken too."""

    prompt: Any
    """A text, token ids, both in one list, `{"prompt_string": …}`, or a list of such prompts."""
    n_predict: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """`max_tokens`; -1 is the server's own bound."""
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    """`repetition_penalty`."""
    n_probs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Likeliest tokens to tell of at each position."""
    logit_bias: Any = None
    """Pairs of a token id or a text and a bias, where false forbids; or an object of them."""
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Meta(max_length=MAX_RESPONSE_FIELDS)] | None = None
    """The only fields to answer with; a slash leads inside."""

    # Harmless here: taken and not used.
    cache_prompt: bool | None = None
    """Prompts always share the cache; the answer is the same."""
    id_slot: Any = None
    n_keep: Any = None
    n_discard: Any = None
    samplers: Any = None
    min_keep: Any = None
    backend_sampling: Any = None


class LlamaTopLogprob(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    """Of the model's own distribution."""
    prob: float | UnsetType = UNSET
    """With `post_sampling_probs` instead: among what could be drawn."""


class LlamaLogprob(LlamaTopLogprob, frozen=True, kw_only=True):
    """The token that was taken, and the likeliest ones, under one of two names."""

    top_logprobs: list[LlamaTopLogprob] | UnsetType = UNSET
    top_probs: list[LlamaTopLogprob] | UnsetType = UNSET


class LlamaChunk(Struct, frozen=True, kw_only=True):
    """What a stream says before its last event."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[LlamaLogprob] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    """With `timings_per_token`."""
    prompt_progress: PromptProgress | UnsetType = UNSET
    """With `return_progress`, before the first token."""


class LlamaSettings(Struct, frozen=True, kw_only=True):
    """What the answer was made with."""

    n_predict: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    n_probs: int
    stream: bool


class LlamaCompletion(Struct, frozen=True, kw_only=True):
    """The answer, and the last event of a stream."""

    index: int
    content: str
    """In a stream, empty: it has been said."""
    tokens: list[int]
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: LlamaSettings
    prompt: str
    has_new_line: bool
    truncated: bool = False
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    timings: Timings
    completion_probabilities: list[LlamaLogprob] | UnsetType = UNSET


class LlamaNextToken(Struct, frozen=True, kw_only=True):
    """Where a slot is in its answer."""

    has_next_token: bool
    n_remain: int
    """Tokens that it may still make; -1 where nothing runs."""
    n_decoded: int


class LlamaSlot(Struct, frozen=True, kw_only=True):
    """One of the sequences that may run at once: which are busy, and nothing of what they were asked."""

    id: int
    id_task: int
    """Counts the sequences that this server process was given; -1 where nothing runs."""
    n_ctx: int
    speculative: bool
    is_processing: bool
    """From the submission of a sequence on: one that waits for memory counts, too."""
    next_token: list[LlamaNextToken]
