"""llama.cpp's request → that of `/v1/completions`."""

from typing import Any, Final

from headrace.api.completions import MAX_PROMPTS, CompletionRequest, Prompt
from headrace.api.fields import MAX_LOGIT_BIAS
from headrace.api.llama import LlamaRequest
from headrace.core.errors import BadRequestError
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.dialects.names import Names, shared_fields

NAMES: Final[Names] = (
    (r"max_tokens", "n_predict"),
    (r"logprobs", "n_probs"),
    (r"repetition_penalty", "repeat_penalty"),
)
#: llama.cpp's own sampling.
DEFAULTS: Final[dict[str, float]] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
#: What `false` means as a bias: the token is as good as forbidden.
_FORBIDDEN: Final = -100.0
#: Of a text in a bias; longer ones are no words.
_MAX_BIAS_CHARS: Final = 200


def to_completion(
    request: LlamaRequest, tokenizer: Tokenizer, *, has_own_defaults: bool = False
) -> CompletionRequest:
    """The same, in OpenAI's words. Raises BadRequestError by llama.cpp's names.

    `has_own_defaults`: what is not said is sampled by llama.cpp's defaults, not by the model's.
    """
    fields = shared_fields(request)
    if has_own_defaults:
        for name, value in DEFAULTS.items():
            if fields[name] is None:
                fields[name] = value
    if request.n_predict is not None:
        if request.n_predict == 0:
            raise _fault("n_predict", "must be at least 1, or -1 for the server's own bound")
        fields["max_tokens"] = request.n_predict if request.n_predict > 0 else None
    if request.repeat_penalty is not None:
        fields["repetition_penalty"] = request.repeat_penalty
    if request.seed == -1:
        fields["seed"] = None
    fields["logit_bias"] = _biases(request.logit_bias, tokenizer)
    fields["prompt"] = _prompts(request.prompt, tokenizer)
    return CompletionRequest(**fields, logprobs=request.n_probs or None)  # type: ignore[arg-type]


def is_one_prompt(prompt: object) -> bool:
    """One prompt is answered with an object, a list of prompts with a list."""
    return not isinstance(prompt, list) or any(_is_id(item) for item in prompt)


def _prompts(prompt: object, tokenizer: Tokenizer) -> list[Any]:
    if is_one_prompt(prompt):
        return [_prompt(prompt, "prompt", tokenizer)]
    assert isinstance(prompt, list)
    if not 0 < len(prompt) <= MAX_PROMPTS:
        raise _fault("prompt", f"must have 1 to {MAX_PROMPTS} prompts")
    return [_prompt(item, f"prompt[{i}]", tokenizer) for i, item in enumerate(prompt)]


def _prompt(item: object, place: str, tokenizer: Tokenizer) -> Prompt:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        if item.get("multimodal_data"):
            raise _fault(f"{place}.multimodal_data", "is not taken: this model reads text only")
        text = item.get("prompt_string")
        if not isinstance(text, str):
            raise _fault(f"{place}.prompt_string", "must be a string")
        return text
    if not isinstance(item, list) or not item:
        raise _fault(place, "must be a text, token ids, or an object with 'prompt_string'")
    ids: list[int] = []
    for number, part in enumerate(item):
        if isinstance(part, str):
            ids += tokenizer.encode(part, add_special=number == 0)
        elif _is_id(part):
            ids.append(part)
        else:
            raise _fault(f"{place}[{number}]", "must be a token id or a text")
    return ids


def _biases(given: object, tokenizer: Tokenizer) -> dict[str, float] | None:
    if not given:
        return None
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > MAX_LOGIT_BIAS:
        raise _fault("logit_bias", f"must be at most {MAX_LOGIT_BIAS} pairs, or an object")
    biases: dict[str, float] = {}
    for number, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _fault(f"logit_bias[{number}]", "must be a pair of a token and a bias")
        token, bias = pair
        if bias is False:
            bias = _FORBIDDEN
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) > 1e9:
            raise _fault(f"logit_bias[{number}][1]", "must be a number, or false")
        for token_id in _biased_ids(token, number, tokenizer):
            biases[str(token_id)] = float(bias)
    if len(biases) > MAX_LOGIT_BIAS:
        raise _fault("logit_bias", f"concerns more than {MAX_LOGIT_BIAS} tokens")
    return biases


def _biased_ids(token: object, number: int, tokenizer: Tokenizer) -> list[int]:
    if _is_id(token):
        return [token]  # type: ignore[list-item]
    if not isinstance(token, str) or len(token) > _MAX_BIAS_CHARS:
        raise _fault(f"logit_bias[{number}][0]", "must be a token id or a short text")
    if token.isascii() and token.isdigit():
        return [int(token)]
    return tokenizer.encode(token, add_special=False)


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31


def _fault(param: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{param}' {what}.", param=param)
