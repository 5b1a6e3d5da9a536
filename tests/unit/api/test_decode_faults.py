"""Decoding names the field and says what was expected, in plain words."""

import pytest

from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.api.decode import decode
from headrace.core.errors import BadRequestError


@pytest.mark.parametrize(
    ("body", "param", "sentence"),
    [
        (b"{}", "messages", "'messages' is required."),
        (b"[]", None, "The body: expected an object, got a list."),
        (b'{"messages": 1}', "messages", "'messages': expected a list, got a whole number."),
        (
            b'{"messages": [{"role": "user", "content": true}]}',
            "messages[0].content",
            "'messages[0].content': expected a string or a list, got a boolean.",
        ),
        (
            b'{"messages": [{"role": "bot", "content": "x"}]}',
            "messages[0].role",
            "'messages[0].role': 'bot' is none of assistant, developer, function, system, tool, user.",
        ),
        (
            b'{"messages": [{"role": "user"}], "max_tokens": 0}',
            "max_tokens",
            "'max_tokens': expected a whole number >= 1.",
        ),
        (
            b'{"messages": [{"role": "user"}], "logit_bias": {"1": "x"}}',
            "logit_bias",
            "'logit_bias': expected a number, got a string.",
        ),
    ],
)
def test_chat(body, param, sentence):
    with pytest.raises(BadRequestError) as caught:
        decode(body, ChatRequest)
    assert (caught.value.param, str(caught.value)) == (param, sentence)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"prompt": "\xff"}', b'{"prompt": "a", "grammar": ' + b"[" * 100_000, b"nul"],
)
def test_what_is_no_json(body):
    with pytest.raises(BadRequestError) as caught:
        decode(body, CompletionRequest)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_prompts(prompt, prompts):
    assert CompletionRequest(prompt=prompt).prompts() == prompts
