"""Bodies that no client should send."""

import copy
import json
import random
from typing import Any

_VALID: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    {"prompt": "Hi", "max_tokens": 3, "logprobs": 1},
    {"prompt": [1, 2, 3], "max_tokens": 2, "n": 2, "stop": ["x"], "logit_bias": {"5": 1.0}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 2},
]
_ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, -1e308,
    "", "x", "\x00", "\ud83d", "😀" * 50, "<|im_end|>", [], [[]], [[[]]], {}, {"a": {"b": []}},
    [None], [1, "a"], ["a"] * 40, list(range(300)), {"type": "json_object"}, "auto", "null", "1e9",
]  # fmt: skip
_NAMES = [
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "min_p", "n", "stop", "stop_token_ids", "seed", "stream", "stream_options", "logprobs",
    "top_logprobs", "logit_bias", "presence_penalty", "repetition_penalty", "min_tokens", "tools",
    "tool_choice", "response_format", "echo", "suffix", "user", "priority", "prior_output_ids",
    "cache_salt", "chat_template_kwargs", "continue_final_message", "add_generation_prompt",
    "reasoning_effort", "best_of", "guided_json", "nobody", "ignore_eos", "include_stop_str_in_output",
]  # fmt: skip


def odd_value(rng: random.Random) -> Any:
    """A value that few fields expect, to be kept and changed."""
    return copy.deepcopy(rng.choice(_ODD))


def garbage(rng: random.Random) -> bytes:
    """JSON with one or more odd values, broken JSON, or noise."""
    body = json.loads(json.dumps(rng.choice(_VALID)))
    kind = rng.randrange(6)
    if kind <= 2:
        for _ in range(rng.randint(1, 3)):
            _put_odd(rng, body)
        return json.dumps(body).encode("utf-8", "surrogatepass")
    text = json.dumps(body).encode()
    if kind == 3:
        place = rng.randrange(len(text))
        return text[:place] + bytes([rng.randrange(256)]) + text[place + rng.randrange(4) :]
    if kind == 4:
        depth = rng.choice((10, 1000, 100_000))
        return rng.choice((b"[" * depth, b'{"messages":' * depth, b'{"prompt":' + b"[" * depth))
    return rng.randbytes(rng.randrange(300))


def _put_odd(rng: random.Random, body: dict[str, Any]) -> None:
    place: Any = body
    while rng.random() < 0.4:
        inner = [v for v in (place.values() if isinstance(place, dict) else place) if v]
        inner = [v for v in inner if isinstance(v, dict | list)]
        if not inner:
            break
        place = rng.choice(inner)
    if isinstance(place, dict):
        place[rng.choice([*_NAMES, *place])] = odd_value(rng)
    else:
        place[rng.randrange(len(place))] = odd_value(rng)
