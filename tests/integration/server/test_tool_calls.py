"""A server whose model says a fixed text: calls and reasoning, whole and streamed, in the shapes of the API."""

import json
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from tests.support.fake_server import FakeServer, write_byte_tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ADD = {"type": "function", "function": {"name": "add"}}
ONE = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris é"}}\n</tool_call>'
TWO = f'Let me see.\n{ONE}\n<tool_call>\n{{"name": "add", "arguments": {{}}}}\n</tool_call>'
BROKEN = "<tool_call>\n{'name': 'add'}\n</tool_call>"
THINKING = f"<think>\nHm, {ONE}\n</think>\n\nYes. "
ASK = [{"role": "user", "content": "?"}]


def serve(tmp_path: Path, text: str, *, template: str | None = None, **server) -> FakeServer:
    """Says `text` once, a byte a token."""
    engine = {"text": text, "tokens": len(text.encode()) + 1}
    if template is not None:
        path = write_byte_tokenizer(
            tmp_path / "thinking", template=template, added=("<think>", "</think>")
        )
        engine["tokenizer"] = str(path)
    return FakeServer(tmp_path, engine=engine, **server)


def whole(server: FakeServer, **fields) -> dict:
    body = {"messages": ASK, "max_tokens": 1000, **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server: FakeServer, **fields) -> tuple[dict, str]:
    """The message that a stream's chunks add up to, and its finish reason."""
    message: dict = {"content": None}
    finish = None
    body = {"messages": ASK, "max_tokens": 1000, "stream": True, **fields}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    for line in lines:
        (choice,) = json.loads(line[6:])["choices"]
        _add(message, choice["delta"])
        finish = choice["finish_reason"] or finish
    message["content"] = message["content"] or None
    return message, finish


def _add(message: dict, delta: dict) -> None:
    for name in ("content", "reasoning_content"):
        if delta.get(name):
            message[name] = (message.get(name) or "") + delta[name]
    for piece in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if piece["index"] == len(calls):
            assert piece["id"]
            assert piece["type"] == "function"
            calls.append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
        else:
            assert "id" not in piece
            assert "name" not in piece["function"]
        calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    if "function_call" in delta:
        call = message.setdefault("function_call", {"name": "", "arguments": ""})
        call["name"] += delta["function_call"].get("name", "")
        call["arguments"] += delta["function_call"]["arguments"]


def pairs(calls: list[dict]) -> list[tuple[str, str]]:
    return [
        (call.get("name") or call["function"]["name"], (call.get("function") or call)["arguments"])
        for call in calls
    ]


def test_calls_whole_and_streamed(tmp_path: Path) -> None:
    with serve(tmp_path, TWO) as server:
        answer = whole(server, tools=[WEATHER, ADD], logprobs=True)
        (choice,) = answer["choices"]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert message["content"] == "Let me see.\n"
        assert "reasoning_content" not in message
        wanted = [("get_weather", '{"city": "Paris é"}'), ("add", "{}")]
        assert pairs(message["tool_calls"]) == wanted
        assert len({call["id"] for call in message["tool_calls"]}) == 2
        # Every token has its log-probability, those of calls too, and the end as well.
        assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
        told, finish = streamed(server, tools=[WEATHER, ADD])
        assert (told["content"], finish) == ("Let me see.\n", "tool_calls")
        assert pairs(told["tool_calls"]) == wanted
        # One call where one is asked for: nothing after it is generated.
        one = whole(server, tools=[WEATHER, ADD], parallel_tool_calls=False)
        assert pairs(one["choices"][0]["message"]["tool_calls"]) == wanted[:1]
        assert one["choices"][0]["finish_reason"] == "tool_calls"
        assert one["usage"]["completion_tokens"] < answer["usage"]["completion_tokens"]
        # Cut in a call: it is no call, and it is not lost.
        cut = whole(server, tools=[WEATHER, ADD], max_tokens=30)["choices"][0]
        assert cut["finish_reason"] == "length"
        assert cut["message"]["content"] == TWO[:30]
        # No calls wanted, or none offered: the text is the answer.
        for fields in ({"tools": [WEATHER], "tool_choice": "none"}, {}):
            assert whole(server, **fields)["choices"][0]["message"]["content"] == TWO


def test_stop_strings_are_looked_for_in_what_is_said(tmp_path: Path) -> None:
    with serve(tmp_path, TWO) as server:
        answer = whole(server, tools=[WEATHER, ADD], stop=["Paris", "name"])["choices"][0]
        assert len(answer["message"]["tool_calls"]) == 2
        stopped = whole(server, tools=[WEATHER, ADD], stop=["see"])["choices"][0]
        assert stopped["message"]["content"] == "Let me "
        assert stopped["finish_reason"] == "stop"
        assert stopped["stop_reason"] == "see"


def test_functions_as_before_there_were_tools(tmp_path: Path) -> None:
    with serve(tmp_path, ONE) as server:
        fields = {"functions": [WEATHER["function"]], "function_call": "auto"}
        (choice,) = whole(server, **fields)["choices"]
        call = {"name": "get_weather", "arguments": '{"city": "Paris é"}'}
        assert choice["message"]["function_call"] == call
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "function_call"
        message, finish = streamed(server, **fields)
        assert (message["function_call"], finish) == (call, "function_call")
        history = [
            *ASK,
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "get_weather", "content": "rain"},
        ]
        assert whole(server, messages=history, **fields)


def test_a_broken_call_is_said(tmp_path: Path) -> None:
    with serve(tmp_path, BROKEN) as server:
        (choice,) = whole(server, tools=[ADD])["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (BROKEN, "stop")
        assert "tool_calls" not in choice["message"]
        message, finish = streamed(server, tools=[ADD])
        assert (message, finish) == ({"content": BROKEN}, "stop")


def test_reasoning_and_its_bound(tmp_path: Path) -> None:
    with serve(tmp_path, THINKING, reasoning_parser="think") as server:
        answer = whole(server, tools=[WEATHER])
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == f"Hm, {ONE}"
        assert message["content"] == "Yes. "
        details = answer["usage"]["completion_tokens_details"]
        assert (
            details["reasoning_tokens"] == len(THINKING[7:].partition("</think>")[0].encode()) + 8
        )
        told, finish = streamed(server)
        assert (told, finish) == (
            {"content": "Yes. ", "reasoning_content": f"Hm, {ONE}"},
            "stop",
        )
        hidden = whole(server, include_reasoning=False)["choices"][0]["message"]
        assert "reasoning_content" not in hidden
        assert hidden["content"] == "Yes. "
        refused = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": ASK, "max_thinking_tokens": 5},
        )
        # This tokenizer spells the end of reasoning in eight tokens, which the engine cannot see.
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "max_thinking_tokens"


def test_a_budget_ends_reasoning(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
    with serve(tmp_path, "abcdefghijklmnop", template=template) as server:
        for name in ("max_thinking_tokens", "thinking_budget", "thinking_token_budget"):
            message = whole(server, **{name: 5})["choices"][0]["message"]
            assert message["reasoning_content"] == "abcde"
            assert message["content"] == "ghijklmnop"
        message = whole(server, thinking_budget=0)["choices"][0]["message"]
        assert "reasoning_content" not in message
        assert whole(server, thinking_budget=-1)["choices"][0]["message"]["content"] is None
        assert any("reasoning as think" in line for line in server.lines)


def test_the_official_client_adds_up_a_stream(tmp_path: Path) -> None:
    with serve(tmp_path, TWO) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with (
            client,
            client.chat.completions.stream(
                model="fake", messages=ASK, tools=[WEATHER, ADD]
            ) as stream,
        ):
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        assert message.content == "Let me see.\n"
        assert [call.function.name for call in message.tool_calls] == ["get_weather", "add"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [ADD, ADD]}, "tools[1].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f" * 200}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}}]},
            "tools[0].function.parameters.properties.a.type",
        ),
        ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
        ({"tools": [ADD] * 129}, "tools"),
        (
            {
                "tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string", "pattern": "("}}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_offered_is_named(http: httpx.Client, fields: dict, param: str) -> None:
    response = http.post("/v1/chat/completions", json={"messages": ASK, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


#: Values of every kind, in the places where clients put tools.
ODD = (
    None,
    True,
    3,
    -1.5,
    "x",
    "",
    [],
    [[]],
    {},
    {"a": None},
    [3],
    ["x"],
    [{}],
    {"type": 3},
    "\u0000",
)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_nothing_odd_is_our_fault(http: httpx.Client, odd: object) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    bodies = [
        {"tools": odd},
        {"tools": [odd]},
        {"tools": [{"type": odd, "function": ADD["function"]}]},
        {"tools": [{"function": odd}]},
        {"tools": [{"function": {"name": odd}}]},
        {"tools": [{"function": {"name": "f", "description": odd, "strict": odd}}]},
        {"tools": [{"function": {"name": "f", "parameters": odd}}], "tool_choice": "required"},
        {"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": odd}}}}], "tool_choice": "required"},
        {"tools": [{"function": {"name": "f", "parameters": {"anyOf": odd, "$ref": odd}}}]},
        {"tools": [ADD], "tool_choice": odd},
        {"tools": [ADD], "tool_choice": {"type": "function", "function": odd}},
        {"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": odd}},
        {"tools": [ADD], "parallel_tool_calls": odd, "max_thinking_tokens": odd},
        {"functions": odd, "function_call": odd},
        {"messages": [*ASK, {"role": "assistant", "tool_calls": odd}]},
        {"messages": [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": odd, "content": odd}]},
        {"messages": [*ASK, {"role": "assistant", "function_call": odd}]},
        {"messages": [*ASK, {"role": "assistant", "tool_calls": [{**call, "function": odd}]}]},
        {"messages": [*ASK, {"role": "assistant", "tool_calls": [{**call, "function": {"name": "f", "arguments": odd}}]}]},
    ]  # fmt: skip
    for body in bodies:
        response = http.post(
            "/v1/chat/completions",
            json={"messages": ASK, "max_tokens": 2, "chat_template_kwargs": {}, **body},
        )
        assert response.status_code in (200, 400), (body, response.text)
