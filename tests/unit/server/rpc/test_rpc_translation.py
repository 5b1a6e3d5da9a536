"""Messages of gRPC as bodies, answers as messages, statuses as codes."""

import json
import math

import grpc
import pytest
from google.protobuf import json_format, struct_pb2

from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.api.decode import decode
from headrace.api.problems import Problem
from headrace.core.errors import BadRequestError, RequestCancelledError
from headrace.server.rpc.calls import METHODS, Calls, _client_of
from headrace.server.rpc.schema import Schema
from headrace.server.rpc.statuses import _CODES, code_of
from headrace.server.rpc.translate import body_of, fill
from headrace.web.problems import _TABLE, status_of

SCHEMA = Schema()


def made(method, **fields):
    return SCHEMA.classes_of(method)[0](**fields)


def test_every_field_of_a_text_request_is_one_of_its_route():
    sampling = {
        "max_tokens": 3, "min_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 2, "min_p": 0.25,
        "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5, "seed": -(2**63),
        "stop": ["a", "b"], "n": 2, "ignore_eos": False, "priority": -4,
    }  # fmt: skip
    message = made("Generate", model="m", text="hi", sampling=sampling, options={"logprobs": 5})
    assert set(sampling) == {field.name for field in message.sampling.DESCRIPTOR.fields}
    body = body_of(message, is_stream=False)
    assert body == {"model": "m", "prompt": "hi", **sampling, "logprobs": 5}
    assert isinstance(body["logprobs"], int)
    wire = decode(json.dumps(body).encode(), CompletionRequest)
    assert (wire.prompt, wire.seed, wire.logprobs) == ("hi", -(2**63), 5)
    assert body.keys() <= {*CompletionRequest.__struct_encode_fields__}


def test_what_is_not_given_is_not_there_and_zero_is_given():
    assert body_of(made("Generate"), is_stream=False) == {}
    body = body_of(
        made("Generate", text="", sampling={"temperature": 0, "seed": 0}), is_stream=True
    )
    assert body == {
        "prompt": "",
        "temperature": 0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert body_of(made("Generate", tokens={"ids": [1, 2]}), is_stream=False) == {"prompt": [1, 2]}
    assert body_of(made("Generate", tokens={}), is_stream=False) == {"prompt": []}


def test_a_chat_with_tools():
    parameters = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 0.5}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "", "tool_call_id": "c"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_object"},
        "options": {"chat_template_kwargs": {"a": [1, None, True, "s", 1.5]}},
    }
    message = json_format.ParseDict(body, made("Chat"))
    options = body.pop("options")
    assert body_of(message, is_stream=False) == body | options
    decode(json.dumps(body | options).encode(), ChatRequest)
    word = made("Chat", tool_choice=struct_pb2.Value(string_value="auto"))
    assert body_of(word, is_stream=False) == {"tool_choice": "auto"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling": {"temperature": math.nan}}, "sampling.temperature"),
        ({"sampling": {"top_p": -math.inf}}, "sampling.top_p"),
        ({"options": {"a": {"b": [math.inf]}}}, "options.a.b[0]"),
        ({"text": "hi", "options": {"prompt": "you"}}, "options.prompt"),
        ({"sampling": {"seed": 1}, "options": {"seed": 2}}, "options.seed"),
        ({"options": {"stream": True}}, "options.stream"),
        ({"options": {"stream_options": None}}, "options.stream_options"),
    ],
)
def test_what_no_body_can_say_names_its_field(fields, param):
    with pytest.raises(BadRequestError) as caught:
        body_of(made("Generate", **fields), is_stream=False)
    assert caught.value.param == param


def test_whole_numbers_of_a_struct_are_whole_as_far_as_they_are_exact():
    numbers = {"a": 5.0, "b": 0.5, "c": 2.0**53, "d": 1e300, "e": -0.0}
    body = body_of(made("Generate", options=numbers), is_stream=False)
    assert [type(body[name]) for name in "abcde"] == [int, float, int, float, int]


def test_answers_fill_messages_and_what_has_no_field_is_left_out():
    answer = {
        "id": "x", "object": "text_completion", "created": 2**40, "model": "m", "new": {"a": [None]},
        "choices": [
            {"index": 0, "text": "héllo", "finish_reason": None, "stop_reason": None, "logprobs": None},
            {"index": 1, "text": "", "finish_reason": "stop", "stop_reason": 7, "token_ids": [1, 2],
             "logprobs": {"token_logprobs": [None, -0.5]}, "prompt_logprobs": [None, {"1": {"rank": 1}}]},
        ],
        "usage": None,
    }  # fmt: skip
    reply = fill(SCHEMA.classes_of("Generate")[1](), json.dumps(answer).encode())
    first, second = reply.choices
    assert (reply.created, first.text, first.finish_reason) == (2**40, "héllo", "")
    assert (second.finish_reason, second.stop_reason.number_value) == ("stop", 7)
    assert list(second.token_ids) == [1, 2]
    assert second.logprobs["token_logprobs"].values[1].number_value == -0.5
    assert not reply.HasField("usage")


def test_every_status_of_the_table_has_a_code():
    assert {row[0] for _, row in _TABLE} <= _CODES.keys()
    assert code_of(418) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(599) is grpc.StatusCode.INTERNAL


def test_error_objects_in_the_middle_of_a_stream_have_the_status_of_their_exceptions():
    for _, (status, name, code) in _TABLE:
        assert status_of(Problem(message="m", type=name, code=code)) == status
    assert status_of(Problem(message="m", type="invalid_request_error", code="own")) == 400
    assert status_of(Problem(message="m", type="unheard of", code=None)) == 500


class Context:
    """What `Calls` asks of a call."""

    def __init__(self, remaining):
        self._remaining = remaining

    def time_remaining(self):
        return self._remaining


@pytest.mark.parametrize(
    ("remaining", "options", "timeout"),
    [(None, {}, None), (2.5, {}, 2.5), (2.5, {"timeout": 1}, 1), (None, {"timeout": 9}, 9)],
)
def test_a_deadline_is_a_timeout_of_the_request(remaining, options, timeout):
    calls = Calls(None, None, max_calls=1, stall_timeout=1.0)
    data = made("Generate", text="a", options=options).SerializeToString()
    request, _ = SCHEMA.classes_of("Generate")
    body = json.loads(calls._body(METHODS[0], request, data, Context(remaining)))
    assert body.get("timeout") == timeout
    with pytest.raises(RequestCancelledError):
        calls._body(METHODS[0], request, made("Generate").SerializeToString(), Context(-0.1))


def test_who_calls_is_read_from_the_peer():
    assert _client_of("ipv4:10.0.0.1:8080") == ("10.0.0.1", 8080)
    assert _client_of("ipv6:%5B::1%5D:80") == ("[::1]", 80)
    assert _client_of("unix:/tmp/socket") is None
    assert _client_of("ipv4:") is None


def test_every_method_is_served():
    service = SCHEMA._service
    assert {method.name for method in METHODS} == {*service.methods_by_name}
    for method in METHODS:
        assert service.methods_by_name[method.name].server_streaming == method.is_stream
