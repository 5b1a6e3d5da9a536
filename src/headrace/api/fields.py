"""Request fields that chat and text completions share: OpenAI's, and vLLM's extras.

Wire types only. `preprocess.params` resolves defaults and checks what depends on the model;
`api.unsupported` refuses what would change the answer and is not served.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headrace.api.aliases import AliasFields

#: Bounds that keep one request from costing much before it is admitted.
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_PATTERNS = 8
MAX_STOP_PATTERN_CHARS = 256
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_ALLOWED = 65_536
MAX_BAD_WORDS = 128
MAX_BREAKERS = 64
MAX_BREAKER_CHARS = 64

StopText = Annotated[str, Meta(max_length=MAX_STOP_CHARS)]
StopList = Annotated[list[StopText], Meta(max_length=MAX_STOPS)]
BreakerText = Annotated[str, Meta(min_length=1, max_length=MAX_BREAKER_CHARS)]
StopPattern = Annotated[str, Meta(max_length=MAX_STOP_PATTERN_CHARS)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(Struct, frozen=True, kw_only=True):
    """How a stream reports."""

    include_usage: bool | None = None
    """A last chunk without choices carries the usage; every other chunk has `usage: null`."""
    continuous_usage_stats: bool | None = None
    """Every chunk carries the usage so far (vLLM)."""


class GenerationFields(AliasFields, frozen=True, kw_only=True):
    """Everything but the prompt."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    typical_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Locally typical sampling, as the next three in llama.cpp's words."""
    top_n_sigma: Annotated[float, Meta(ge=-1.0, le=1000.0)] | None = None
    xtc_probability: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    xtc_threshold: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    """The penalty for going on with a repetition, as the next four in llama.cpp's words; 0: none."""
    dry_base: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    """What each further token multiplies it by; less than 1 means the default, 1.75."""
    dry_allowed_length: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """A repetition of so many tokens, 2 by default, is penalised by the multiplier itself."""
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """Tokens to look for repetitions in; -1: all, 0: none."""
    dry_sequence_breakers: Annotated[list[BreakerText], Meta(max_length=MAX_BREAKERS)] | None = None
    """Texts that no repetition reaches across; default line feed, colon, quotation mark, asterisk."""
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Int64 | None = None
    stop: StopText | StopList | None = None
    stop_regex: (
        StopPattern | Annotated[list[StopPattern], Meta(max_length=MAX_STOP_PATTERNS)] | None
    ) = None
    """Regular expressions that end the answer as soon as one matches (SGLang)."""
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_ALLOWED)] | None = None
    """Only these tokens may be drawn (vLLM)."""
    bad_words: StopText | Annotated[list[StopText], Meta(max_length=MAX_BAD_WORDS)] | None = None
    """Words that the answer never holds, as their tokens spell them (vLLM)."""
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    use_beam_search: bool | None = None
    """Give the n likeliest answers instead of drawing n (vLLM)."""
    beam_width: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Beams of the search; default n. Asks for a search on its own where it is more than 1."""
    num_beams: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """The same, as transformers names it."""
    length_penalty: float | None = None
    """Power of an answer's length by which its summed log-probability is divided; default 1."""
    early_stopping: bool | Literal["never"] | None = None
    """When a search ends: true, as soon as there are as many answers as beams; "never", when no answer can
    become better; false, when that is unlikely."""
    user: str | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    request_id: str | None = None
    """Ignored: ids are the server's, the header `x-request-id` names the request."""

    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    """Separates prefix caches: what was cached under another salt is not found."""
    prior_output_ids: list[TokenId] | None = None
    """Output that an earlier replica already made, to be continued; trusted peers only."""

    # What bounds the text of the answer; at most one of them: `preprocess.constraint` reads them.
    response_format: Any = None
    """OpenAI's."""
    structured_outputs: Any = None
    """vLLM's, and its older forms, which begin with `guided_`."""
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    """llama.cpp's GBNF; or Lark."""
    grammar_lazy: bool | None = None
    json_schema: Any = None
    """llama.cpp's and SGLang's."""
    regex: Any = None
    """SGLang's, as the next two."""
    ebnf: Any = None
    structural_tag: Any = None

    post_sampling_probs: bool | None = None
    """Log-probabilities are of what was left to draw from, not of the model's own (llama.cpp)."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Report the prompt's log-probabilities, with this many alternatives (vLLM); not in streams."""
    return_token_ids: bool | None = None
    """Token ids of prompt and answer beside their text (vLLM)."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """Keep the prompt's last tokens, so many; -1 as many as fit (vLLM)."""
    timeout: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    """Seconds after which the answer ends where it is: `stop_reason` is then `timeout`."""

    timings_per_token: bool | None = None
    """Tell of pace in llama.cpp's `timings`: beside the answer, and in every chunk of a stream."""
    verbose: bool | None = None
    """Chat: show the rendered prompt in llama.cpp's `__verbose`; not in streams."""
    return_progress: bool | None = None
    """In streams, llama.cpp's `prompt_progress` while the prompt is computed."""

    # Known to other servers, refused here unless harmless: see `api.unsupported`.
    logits_processors: Any = None
    spaces_between_special_tokens: Any = None
