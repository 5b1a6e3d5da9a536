"""How the next token is chosen."""

from typing import Annotated

from msgspec import Meta, Struct

#: The largest number of alternatives that one position may report.
MAX_LOGPROBS = 20
#: The largest number of continuations that a row may report to whoever decides between them (beam search).
MAX_CANDIDATES = 32


class ThinkingLimit(Struct, frozen=True, kw_only=True):
    """How long a model may reason: after `max_tokens` tokens of reasoning, its end is forced.

    Reasoning begins with the output, or behind the first `begin_ids` in it, and ends with the first `end_ids`
    that follow. When it has had `max_tokens` tokens and no end, the next tokens are `forced_ids`, whatever was
    drawn. A pure function of the output so far: preemption and `prior_output_ids` change nothing.
    """

    max_tokens: Annotated[int, Meta(ge=0)]
    begin_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...]
    """At least one."""
    forced_ids: tuple[int, ...]
    """At least one; they hold, or are, what ends reasoning."""


class Dry(Struct, frozen=True, kw_only=True):
    """A penalty for going on with a repetition ("don't repeat yourself", P. E. Weidmann, 2024).

    When the last n tokens, prompt and output, occur earlier too, and n is at least `allowed_length`, the token
    that followed them there loses `multiplier * base ** (n - allowed_length)`. A repetition never reaches back
    across a breaker. A pure function of the tokens so far.
    """

    multiplier: Annotated[float, Meta(ge=0.0, le=100.0)]
    base: Annotated[float, Meta(ge=1.0, le=100.0)]
    allowed_length: Annotated[int, Meta(ge=1)]
    window: Annotated[int, Meta(ge=0)]
    """How many of the last tokens are looked at; the cost of a step grows with it, not with its square."""
    breakers: tuple[int, ...] = ()
    """Tokens that end a repetition each; they are never penalised."""
    breaker_words: tuple[tuple[int, ...], ...] = ()
    """Several tokens in a row that do."""


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resolved parameters of one sequence: no field is left for the engine to guess.

    Processing order, the same in every back end: logit_bias, min_tokens mask, allowed_token_ids, bad_words, repetition penalty,
    presence and frequency penalties, dry, temperature, top_k, top_p, min_p,
    top_n_sigma, typical_p, xtc, Gumbel-max draw.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    """0 is greedy: the lowest token id among the largest logits."""
    top_k: Annotated[int, Meta(ge=0)] = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches p."""
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    top_n_sigma: Annotated[float, Meta(ge=0.0, le=1000.0)] = 0.0
    """Drop tokens whose logit is more than n standard deviations below the largest; 0 keeps all."""
    typical_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the tokens whose information is nearest to the entropy, up to this share of probability."""
    xtc_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Chance that all tokens at least `xtc_threshold` likely but the least likely of them are dropped."""
    xtc_threshold: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    """Subtracted once from the logit of every token that the output holds."""
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    """Subtracted per occurrence in the output."""
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, 2019)."""
    dry: Dry | None = None
    logit_bias: dict[int, float] = {}
    """Added to the logits, by token id; each value in [-100, 100]."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these may be drawn; empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output never holds: the last token of one is masked behind the others."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Resolved by the server before the engine sees it; the noise is a hash of (seed, position, id)."""
    max_tokens: Annotated[int, Meta(ge=0)] = 16
    """Upper bound of output tokens, `prior_output_ids` counted; with 0 the prompt is computed and no more."""
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    """End-of-sequence and stop tokens are masked until the output has this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; matched on text, by `completion`."""
    stop_regex: tuple[str, ...] = ()
    """Regular expressions that do so too; see `preprocess.patterns` for what is taken."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, beside the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Do not end at the model's end-of-sequence ids."""
    thinking: ThinkingLimit | None = None
    """Bounds reasoning; what is forced has log-probabilities like any other token."""
    logprobs: Annotated[int, Meta(ge=0, le=MAX_CANDIDATES)] | None = None
    """Report the log-probability of each chosen token and of this many best ones; None reports none.
    They are of the raw distribution: logits before penalties, bias and temperature."""
    post_sampling_probs: bool = False
    """They are of what was left to draw from instead, after all that is above, renormalised."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    """The same for every prompt token but the first. What has none yet is computed, cached or not."""

    @property
    def is_greedy(self) -> bool:
        """No noise is drawn."""
        return self.temperature == 0.0
