import json
from typing import Any

import pytest

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.secret import Secret
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.backends.values import CHAT, COMPLETIONS, Incoming, ResumePoint

HELLO = [{"role": "user", "content": "Hello"}]
MADE = ResumePoint(text="Hi the", num_tokens=2)


def resumed(
    dialect: str, path: str, body: dict[str, Any], progress: ResumePoint, **fields: Any
) -> Any:
    spec = ReplicaSpec(url="http://r:1", dialect=Dialect(dialect), **fields)
    call = backend_for(spec).resume(Incoming(path=path, body=json.dumps(body).encode()), progress)
    return None if call is None else json.loads(call.body)


def test_headrace_goes_on_from_token_ids() -> None:
    body = {"model": "m", "messages": HELLO, "max_tokens": 9, "logprobs": True}
    progress = ResumePoint(text="Hi", token_ids=(5, 6), num_tokens=2, seed=77, is_plain=False)
    assert resumed("headrace", CHAT, body, progress, peer_token=Secret("p")) == {
        **body, "seed": 77, "prior_output_ids": [5, 6],
    }  # fmt: skip


def test_ids_of_two_failures_add_up() -> None:
    body = {"messages": HELLO, "prior_output_ids": [1, 2], "seed": 3}
    progress = ResumePoint(token_ids=(3,), num_tokens=1, seed=3)
    going_on = resumed("headrace", CHAT, body, progress, peer_token=Secret("p"))
    assert going_on["prior_output_ids"] == [1, 2, 3]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "headrace"])
def test_a_chat_goes_on_by_text(dialect: str) -> None:
    body = {"messages": HELLO, "max_tokens": 10, "min_tokens": 1, "max_completion_tokens": 10}
    assert resumed(dialect, CHAT, body, MADE) == {
        "messages": [*HELLO, {"role": "assistant", "content": "Hi the"}],
        "max_tokens": 8, "max_completion_tokens": 8, "min_tokens": 0,
        "add_generation_prompt": False, "continue_final_message": True,
    }  # fmt: skip


def test_llamacpp_goes_on_with_a_last_assistant_message() -> None:
    assert resumed("llamacpp", CHAT, {"messages": HELLO}, MADE) == {
        "messages": [*HELLO, {"role": "assistant", "content": "Hi the"}]
    }


def test_llamacpp_goes_on_with_a_message_that_the_client_began() -> None:
    """It leaves that one open unasked, and refuses two messages of the assistant."""
    body = {"messages": [*HELLO, {"role": "assistant", "content": "Well, "}]}
    assert resumed("llamacpp", CHAT, body, MADE) == {
        "messages": [*HELLO, {"role": "assistant", "content": "Well, Hi the"}]
    }
    assert resumed("llamacpp", CHAT, body, ResumePoint()) == body
    parts = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]
    assert resumed("llamacpp", CHAT, {"messages": parts}, MADE) is None


def test_a_message_that_the_client_began_gets_longer() -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    body = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    going_on = resumed("vllm", CHAT, body, MADE)
    assert going_on["messages"] == [*HELLO, {"role": "assistant", "content": "Well, Hi the"}]


@pytest.mark.parametrize("dialect", ["vllm", "openai", "tgi", "trtllm", "llamacpp"])
@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_a_completion_goes_on_behind_its_prompt(dialect: str, prompt: Any) -> None:
    assert resumed(dialect, COMPLETIONS, {"prompt": prompt}, MADE) == {"prompt": "OnceHi the"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HELLO, "n": 2},
        {"messages": HELLO, "max_tokens": 2},
        {"messages": HELLO, "logprobs": True},
        {"messages": HELLO, "response_format": {"type": "json_object"}},
        {"messages": HELLO, "tool_choice": "required"},
        {"messages": HELLO, "tool_choice": {"type": "function"}},
        {
            "messages": [*HELLO, {"role": "assistant", "content": None}],
            "continue_final_message": True,
        },
    ],
)
def test_chats_that_text_cannot_go_on_with(body: dict[str, Any]) -> None:
    assert resumed("vllm", CHAT, body, MADE) is None


@pytest.mark.parametrize("prompt", [[1, 2], ["a", "b"], [[1, 2]], None])
def test_completions_that_text_cannot_go_on_with(prompt: Any) -> None:
    assert resumed("vllm", COMPLETIONS, {"prompt": prompt}, MADE) is None
    assert resumed("vllm", COMPLETIONS, {"prompt": "x", "logprobs": 0}, MADE) is None


def test_one_prompt_of_ids_goes_on_from_ids() -> None:
    progress = ResumePoint(token_ids=(9,), num_tokens=1)
    token = Secret("p")
    assert resumed("headrace", COMPLETIONS, {"prompt": [1, 2]}, progress, peer_token=token)
    several = {"prompt": ["a", "b"]}
    assert resumed("headrace", COMPLETIONS, several, progress, peer_token=token) is None


def test_calls_and_reasoning_are_not_gone_on_with_by_text() -> None:
    progress = ResumePoint(text="Hi", num_tokens=1, is_plain=False)
    assert resumed("vllm", CHAT, {"messages": HELLO}, progress) is None


def test_hosted_chats_and_other_routes_are_not_gone_on_with() -> None:
    assert resumed("openai", CHAT, {"messages": HELLO}, MADE) is None
    assert resumed("vllm", "/v1/embeddings", {"input": "x"}, MADE) is None


def test_an_answer_that_had_not_begun_is_asked_for_again() -> None:
    assert resumed("vllm", CHAT, {"messages": HELLO, "logprobs": True}, ResumePoint()) is not None
