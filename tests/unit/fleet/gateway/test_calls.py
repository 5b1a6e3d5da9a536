"""A request's body as the gateway reads it, and as it changes it."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadRequestError
from headrace.fleet.gateway.call import Call, Terms, patched, read_call
from headrace.fleet.gateway.endpoints import ENDPOINTS


def read(
    body: object, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_call(
        ENDPOINTS[path],
        raw,
        headers or {},
        request_id="r",
        arrival=0.0,
        terms=Terms(4.0, 100),
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_call_or_a_bad_request(raw):
    try:
        call = read(raw)
    except BadRequestError:
        return
    assert isinstance(call.body, dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=8), JSON, max_size=5),
    st.dictionaries(st.sampled_from(["model", "seed", "x"]), JSON, max_size=2),
    st.sampled_from(["", " ", "\n\t "]),
)
def test_patched_says_what_was_said_and_the_changes(body, changes, blanks):
    raw = blanks.encode() + json.dumps(body).encode() + blanks.encode()
    body.pop("prior_output_ids", None)
    try:
        call = read(raw)
    except BadRequestError:  # a model or stream of a wrong type
        return
    made = patched(call, changes)
    assert msgspec.json.decode(made) == {**call.body, **changes}
    if not changes:
        assert made == call.raw


@pytest.mark.parametrize(
    ("body", "is_single"),
    [
        ({}, True),
        ({"n": 1}, True),
        ({"n": 2}, False),
        ({"prompt": "a"}, True),
        ({"prompt": ["a"]}, True),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": [1, 2, 3]}, True),
        ({"prompt": [[1], [2]]}, False),
        ({"best_of": 3}, False),
        ({"use_beam_search": True, "n": 2}, False),
    ],
)
def test_what_can_be_gone_on_with_has_one_choice(body, is_single):
    assert read(body, "/v1/completions").is_single is is_single


@pytest.mark.parametrize(
    ("body", "tokens", "bound"),
    [
        ({}, 100, 0),
        ({"max_tokens": 5}, 5, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7, 7),
        ({"max_tokens": 5, "n": 3}, 15, 5),
        ({"max_tokens": True}, 100, 0),
        ({"max_tokens": "5"}, 100, 0),
        ({"max_tokens": -5}, 100, 0),
        ({"max_tokens": 10**12}, 100, 0),
    ],
)
def test_output_that_is_reckoned_with(body, tokens, bound):
    call = read(body)
    assert (call.output_tokens, call.bound) == (tokens, bound)


def test_only_text_streams():
    assert read({"stream": True}).is_stream
    assert not read({"stream": True}, "/tokenize").is_stream
    assert not read({"stream": None}).is_stream


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, 100),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 1, "max_tokens": 50}, 50),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 7, "n": 2, "best_of": 5}, 35),
        ({"max_tokens": 7, "prompt": ["a", "b", "c"]}, 21),
        ({"max_tokens": 7, "prompt": [[1, 2], [3]], "n": 2}, 28),
        ({"max_tokens": 7, "prompt": [1, 2, 3]}, 7),
        ({"max_tokens": 7, "prompt": []}, 7),
    ],
)
def test_what_is_set_aside_covers_all_that_may_be_made(body, most):
    assert read(body, "/v1/completions").output_tokens == most


@pytest.mark.parametrize(
    ("body", "context", "expected"),
    [
        ({"max_tokens": 50}, None, 50),
        ({"max_tokens": 1 << 24}, None, 1 << 24),
        ({"max_tokens": 1 << 24}, 1000, 1000),
        ({"max_tokens": 600, "n": 3}, 1000, 1800),
        ({"max_tokens": 1 << 24, "n": 3}, 1000, 3000),
        ({}, 1000, 100),
        ({}, 40, 40),
    ],
)
def test_no_answer_is_expected_to_be_longer_than_its_model_can_make_it(body, context, expected):
    assert read(body).output_within(context) == expected


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"x-slo-ttft-ms": "250"}, 0.25),
        ({"x-llm-d-slo-ttft-ms": "2000"}, 2.0),
        ({"x-llm-d-slo-ttft-ms": "2000", "x-slo-ttft-ms": "1"}, 0.001),
    ],
)
def test_a_client_may_say_when_it_wants_its_first_token(headers, seconds):
    assert read({}, headers=headers).ttft == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "soon", "nan", "\u0663", "9" * 400])
def test_a_time_that_is_none_is_refused_by_name(text):
    with pytest.raises(BadRequestError) as caught:
        read({}, headers={"x-slo-ttft-ms": text})
    assert caught.value.param == "x-slo-ttft-ms"
