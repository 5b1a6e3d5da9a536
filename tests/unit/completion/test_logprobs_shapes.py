import math

import msgspec

from headrace.completion.logprobs import chat_logprobs, completion_logprobs
from headrace.core.events import TokenLogprobs

TABLE = {0: b"Hi", 1: " é".encode(), 2: b"\xf0\x9f", 3: b"<|im_end|>", 4: b"Hi"}
POSITIONS = (
    TokenLogprobs(0, -0.5, 1, ((0, -0.5), (1, -1.0))),
    TokenLogprobs(2, -3.0, 9, ((3, -0.25), (0, -2.0))),
)


def test_the_chat_shape():
    content = msgspec.to_builtins(chat_logprobs(POSITIONS, TABLE))["content"]
    assert content[0] == {
        "token": "Hi", "logprob": -0.5, "bytes": [72, 105],
        "top_logprobs": [
            {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
            {"token": " é", "logprob": -1.0, "bytes": [32, 195, 169]},
        ],
    }  # fmt: skip
    assert (content[1]["token"], content[1]["bytes"]) == ("\\xf0\\x9f", [240, 159])


def test_the_completion_shape():
    shape = completion_logprobs(POSITIONS, (0, 2), TABLE)
    assert shape.tokens == ["Hi", "bytes:\\xf0\\x9f"]
    assert shape.token_logprobs == [-0.5, -3.0]
    assert shape.text_offset == [0, 2]
    # The chosen token is always among the best.
    assert shape.top_logprobs == [
        {"Hi": -0.5, " é": -1.0},
        {"<|im_end|>": -0.25, "Hi": -2.0, "bytes:\\xf0\\x9f": -3.0},
    ]


def test_nothing_is_infinite_in_json():
    position = TokenLogprobs(0, -math.inf, 5, ((1, -math.inf),))
    assert chat_logprobs([position], TABLE).content[0].logprob == -9999.0
    assert completion_logprobs([position], [0], TABLE).top_logprobs == [
        {" é": -9999.0, "Hi": -9999.0}
    ]


def test_of_tokens_that_look_alike_the_likelier_counts():
    position = TokenLogprobs(4, -2.0, 2, ((0, -0.1),))
    assert completion_logprobs([position], [0], TABLE).top_logprobs == [{"Hi": -0.1}]


def test_no_positions_make_empty_lists():
    assert chat_logprobs([], TABLE).content == []
    assert completion_logprobs([], [], TABLE).tokens == []
