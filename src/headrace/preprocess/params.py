"""Wire fields → `SamplingParams`: request over the model's defaults over the API's.

Types and plain ranges are checked when the body is decoded, and again here, because `headrace.LLM` hands
in values that were never on a wire. What depends on the model (token ids, room) is checked here only.
Every refusal is a `BadRequestError` that names the field.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, structs

from headrace.api.fields import (
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARS,
    MAX_STOP_PATTERNS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
)
from headrace.core.errors import BadRequestError
from headrace.core.sampling import MAX_LOGPROBS, SamplingParams
from headrace.preprocess.generation_config import SamplingDefaults
from headrace.preprocess.patterns import PatternError, StopPatterns

#: A top_p of 0 means "the most likely token": any share this small keeps just one.
SMALLEST_TOP_P: Final = 1e-12
#: Logits are divided by it: anything smaller could make them infinite.
SMALLEST_REPETITION_PENALTY: Final = 1e-6
MAX_SEED: Final = 2**63


class SamplingFields(Protocol):
    """The fields of a request that choose tokens; `api.fields.GenerationFields` has them."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def typical_p(self) -> float | None: ...
    @property
    def top_n_sigma(self) -> float | None: ...
    @property
    def xtc_probability(self) -> float | None: ...
    @property
    def xtc_threshold(self) -> float | None: ...
    @property
    def presence_penalty(self) -> float | None: ...
    @property
    def frequency_penalty(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def logit_bias(self) -> dict[str, float] | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def stop(self) -> str | list[str] | None: ...
    @property
    def stop_regex(self) -> str | list[str] | None: ...
    @property
    def stop_token_ids(self) -> list[int] | None: ...
    @property
    def min_tokens(self) -> int | None: ...
    @property
    def ignore_eos(self) -> bool | None: ...
    @property
    def post_sampling_probs(self) -> bool | None: ...


class Bounds(Struct, frozen=True, kw_only=True):
    """What limits one request's output."""

    vocab_size: int
    default_max_tokens: int
    room: int
    """Tokens of the context that the prompt leaves free, at least 1."""


def draw_random_seed() -> int:
    """A seed for a request that brings none."""
    return secrets.randbits(63)


def resolve_params(
    fields: SamplingFields,
    *,
    bounds: Bounds,
    defaults: SamplingDefaults,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    draw_seed: Callable[[], int] = draw_random_seed,
) -> SamplingParams:
    """No field is left for the engine to guess.

    `max_tokens` and `logprobs` are named differently by the two APIs, so the caller hands them in. More
    output than there is room for is cut to the room: the answer then ends with `length`.
    """
    limit = _output_limit(fields.min_tokens, max_tokens, bounds)
    top_p = _number("top_p", fields.top_p, defaults.top_p, 1.0, 0.0, 1.0)
    return SamplingParams(
        temperature=_number(
            "temperature", fields.temperature, defaults.temperature, 1.0, 0.0, 100.0
        ),
        top_k=_top_k(fields.top_k, defaults.top_k),
        top_p=max(top_p, SMALLEST_TOP_P),
        min_p=_number("min_p", fields.min_p, defaults.min_p, 0.0, 0.0, 1.0),
        top_n_sigma=max(0.0, _number("top_n_sigma", fields.top_n_sigma, None, 0.0, -1.0, 1000.0)),
        typical_p=max(_number("typical_p", fields.typical_p, None, 1.0, 0.0, 1.0), SMALLEST_TOP_P),
        xtc_probability=_number("xtc_probability", fields.xtc_probability, None, 0.0, 0.0, 1.0),
        xtc_threshold=_number("xtc_threshold", fields.xtc_threshold, None, 0.1, 0.0, 1.0),
        presence_penalty=_number("presence_penalty", fields.presence_penalty, None, 0.0, -2.0, 2.0),
        frequency_penalty=_number(
            "frequency_penalty", fields.frequency_penalty, None, 0.0, -2.0, 2.0
        ),
        repetition_penalty=_number(
            "repetition_penalty",
            fields.repetition_penalty,
            defaults.repetition_penalty,
            1.0,
            SMALLEST_REPETITION_PENALTY,
            100.0,
        ),
        logit_bias=_logit_bias(fields.logit_bias, bounds.vocab_size),
        seed=resolve_seed(fields.seed, draw_seed),
        max_tokens=limit,
        min_tokens=min(fields.min_tokens or 0, limit),
        stop=_stops(fields.stop),
        stop_regex=_stop_regex(fields.stop_regex),
        stop_token_ids=_stop_token_ids(fields.stop_token_ids, bounds.vocab_size),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=_logprobs("logprobs", logprobs),
        post_sampling_probs=bool(fields.post_sampling_probs) and logprobs is not None,
        prompt_logprobs=_logprobs("prompt_logprobs", prompt_logprobs),
    )


def bounded(params: SamplingParams) -> SamplingParams:
    """The same for an answer that a grammar bounds: `ignore_eos` then means as long as it allows.

    Once nothing else may follow, the answer ends whatever was wished for.
    """
    if not params.ignore_eos:
        return params
    return structs.replace(params, ignore_eos=False, min_tokens=params.max_tokens)


def resolve_seed(seed: int | None, draw_seed: Callable[[], int]) -> int:
    """A seed in [0, 2**63); any whole number is taken, negative ones wrap around."""
    return (draw_seed() if seed is None else seed) % MAX_SEED


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Every id is in the model's vocabulary."""
    # Two passes at the speed of C; the position is looked for only when there is a fault.
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        place = next(i for i, number in enumerate(ids) if not 0 <= number < vocab_size)
        raise _fault(
            f"{name}[{place}]",
            f"token id {ids[place]} is not in the model's vocabulary of {vocab_size} tokens",
        )


def _number(
    name: str, given: float | None, model: float | None, default: float, low: float, high: float
) -> float:
    value = given if given is not None else model if model is not None else default
    # Not "value < low": NaN must not pass.
    if not low <= value <= high:
        raise _fault(name, f"must be between {low:g} and {high:g}, not {value:g}")
    return float(value)


def _top_k(given: int | None, model: int | None) -> int:
    value = given if given is not None else model if model is not None else 0
    if value < -1:
        raise _fault("top_k", f"must be at least 1, or 0 or -1 for all tokens, not {value}")
    return min(max(value, 0), 2**31 - 1)


def _output_limit(min_tokens: int | None, max_tokens: int | None, bounds: Bounds) -> int:
    least = min_tokens or 0
    if least < 0:
        raise _fault("min_tokens", f"must be at least 0, not {least}")
    if max_tokens is None:
        max_tokens = max(bounds.default_max_tokens, least)
    if max_tokens < 0:
        raise _fault("max_tokens", f"must be at least 0, not {max_tokens}")
    if least > max_tokens:
        raise _fault("min_tokens", f"must not exceed max_tokens ({max_tokens}), but is {least}")
    if least > bounds.room:
        raise _fault(
            "min_tokens", f"is {least}, but the prompt leaves room for {bounds.room} tokens"
        )
    return min(max_tokens, bounds.room)


def _logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float]:
    if not bias:
        return {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise _fault("logit_bias", f"has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are taken")
    resolved: dict[int, float] = {}
    for key, value in bias.items():
        place = f"logit_bias.{str(key)[:40]}"
        number = _token_id(key)
        if number is None:
            raise _fault(place, "the key must be a token id, written as a whole number")
        if number >= vocab_size:
            raise _fault(place, f"is not in the model's vocabulary of {vocab_size} tokens")
        if not -100.0 <= value <= 100.0:
            raise _fault(place, f"must be between -100 and 100, not {value:g}")
        if number in resolved:
            raise _fault(place, "names a token that another key names too")
        resolved[number] = float(value)
    return resolved


def _token_id(key: str | int) -> int | None:
    """JSON keys are strings; ASCII digits only, because `int` takes more than anyone means."""
    text = str(key)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None


def _stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise _fault("stop", f"has {len(stops)} strings; at most {MAX_STOPS} are taken")
    for place, text in enumerate(stops):
        name = "stop" if isinstance(stop, str) else f"stop[{place}]"
        if not text:
            raise _fault(name, "must not be empty")
        if len(text) > MAX_STOP_CHARS:
            raise _fault(name, f"has {len(text)} characters; at most {MAX_STOP_CHARS} are taken")
    return tuple(dict.fromkeys(stops))


def _stop_regex(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    patterns = (stop,) if isinstance(stop, str) else tuple(dict.fromkeys(stop))
    if len(patterns) > MAX_STOP_PATTERNS:
        raise _fault(
            "stop_regex", f"has {len(patterns)} patterns; at most {MAX_STOP_PATTERNS} are taken"
        )
    for place, pattern in enumerate(patterns):
        try:
            StopPatterns(patterns[: place + 1])
        except PatternError as error:
            name = "stop_regex" if isinstance(stop, str) else f"stop_regex[{stop.index(pattern)}]"
            raise _fault(name, str(error)) from None
    return patterns


def _stop_token_ids(ids: Sequence[int] | None, vocab_size: int) -> tuple[int, ...]:
    ids = ids or ()
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise _fault(
            "stop_token_ids", f"has {len(ids)} ids; at most {MAX_STOP_TOKEN_IDS} are taken"
        )
    check_token_ids("stop_token_ids", ids, vocab_size)
    return tuple(dict.fromkeys(ids))


def _logprobs(name: str, count: int | None) -> int | None:
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise _fault(name, f"must be between 0 and {MAX_LOGPROBS}, not {count}")
    return count


def _fault(name: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{name}': {what}.", param=name)
