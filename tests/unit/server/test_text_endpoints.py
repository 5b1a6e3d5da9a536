"""`/tokenize` and its kin, in both dialects. Token ids of the test's tokenizer are bytes; 256 and 257 are special."""

import pytest
from tests.support.fake_server import SPECIAL
from tests.support.in_process import InProcess

START, END = SPECIAL
CHAT = {"messages": [{"role": "user", "content": f"hé{END}"}]}
RENDERED = f"{START}user\nhé{END}{END}{START}assistant\n"


@pytest.fixture
async def http(tmp_path):
    async with InProcess(tmp_path) as app:
        yield app.http


async def ask(http, path, **body):
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(http, path, **body):
    answer = await http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def test_content_is_answered_as_llama_cpp_does(http):
    assert await ask(http, "/tokenize", content="hi") == {"tokens": [104, 105]}
    assert await ask(http, "/tokenize", content="") == {"tokens": []}
    special = await ask(http, "/tokenize", content=f"a{END}")
    assert special == {"tokens": [97, 257]}
    plain = await ask(http, "/tokenize", content=f"a{END}", parse_special=False)
    assert plain == {"tokens": list(f"a{END}".encode())}
    mixed = await ask(http, "/tokenize", content=["a", 256, "b"], add_special=True)
    assert mixed == {"tokens": [97, 256, 98]}
    pieces = await ask(http, "/tokenize", content=f"é{END}", with_pieces=True)
    assert pieces["tokens"] == [
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
        {"id": 257, "piece": END},
    ]


async def test_prompt_and_messages_are_answered_as_vllm_does(http):
    told = await ask(http, "/tokenize", prompt="hi", model="fake")
    assert told == {"count": 2, "max_model_len": 2048, "tokens": [104, 105], "token_strs": None}
    told = await ask(http, "/tokenize", prompt="é", return_token_strs=True)
    assert told["token_strs"] == ["�", "�"]
    told = await ask(http, "/tokenize", **CHAT, return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["tokens"].count(257) == 1  # what a user wrote is text
    without = await ask(http, "/tokenize", **CHAT, add_generation_prompt=False)
    assert told["tokens"][: without["count"]] == without["tokens"]
    assert without["count"] < told["count"]


async def test_a_text_longer_than_the_context_is_counted_too(http):
    assert (await ask(http, "/tokenize", prompt="x" * 50_000))["count"] == 50_000
    long = [{"role": "user", "content": "x" * 50_000}]
    assert (await ask(http, "/v1/chat/completions/input_tokens", messages=long))[
        "input_tokens"
    ] > 50_000


async def test_tokens_are_what_generation_counts(http):
    body = {**CHAT, "max_tokens": 1}
    usage = (await ask(http, "/v1/chat/completions", **body))["usage"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert await ask(http, path, **CHAT) == {
            "object": "response.input_tokens",
            "input_tokens": usage["prompt_tokens"],
        }
    assert (await ask(http, "/tokenize", **CHAT))["count"] == usage["prompt_tokens"]


async def test_detokenize_answers_in_both_dialects(http):
    told = await ask(http, "/detokenize", tokens=[104, 0xC3, 0xA9, 257])
    assert told == {"prompt": f"hé{END}", "content": f"hé{END}"}
    bare = await ask(http, "/detokenize", tokens=[104, 257], skip_special_tokens=True)
    assert bare["content"] == "h"
    assert (await ask(http, "/detokenize", tokens=[]))["prompt"] == ""
    assert (await refused(http, "/detokenize", tokens=[1, 512]))["param"] == "tokens[1]"
    assert (await refused(http, "/detokenize", tokens=["a"]))["param"] == "tokens[0]"
    assert (await refused(http, "/detokenize"))["param"] == "tokens"


async def test_the_prompt_is_shown_as_the_template_makes_it(http):
    assert await ask(http, "/apply-template", **CHAT) == {"prompt": RENDERED}
    last = [*CHAT["messages"], {"role": "assistant", "content": "Sure"}]
    told = await ask(http, "/apply-template", messages=last, continue_final_message=True)
    assert told["prompt"].endswith("assistant\nSure")


@pytest.mark.parametrize("body", [{}, {"content": "a", "prompt": "b"}, {"model": "fake"}])
async def test_what_is_of_no_dialect_or_of_two_is_refused(http, body):
    error = await refused(http, "/tokenize", **body)
    assert "llama.cpp" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"content": {}}, "content"),
        ({"content": [600]}, "content[0]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "model": "none"}, None),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
    ],
)
async def test_bad_fields_are_named(http, body, param):
    answer = await http.post("/tokenize", json=body)
    assert answer.status_code == (404 if param is None else 400)
    assert answer.json()["error"]["param"] == param


async def test_llama_cpp_s_clients_find_the_context_length(http):
    props = (await http.get("/props")).json()
    assert props["default_generation_settings"] == {"n_ctx": 2048}
    assert props["total_slots"] == 8
    assert props["modalities"] == {"vision": False, "audio": False}
    assert "message" in props["chat_template"]
    assert "/" not in props["model_path"]
    assert (props["bos_token"], props["eos_token"]) == ("", END)


async def test_unknown_fields_are_named_here_too(http):
    answer = await http.post("/tokenize", json={"content": "a", "add_special_tokens": True})
    assert answer.headers["x-headrace-ignored-fields"] == "add_special_tokens"
