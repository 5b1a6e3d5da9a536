"""Chats through the templates of models and operators."""

import msgspec
import pytest
from tests.support.fake_clock import FakeClock
from tests.support.preparing import (
    ARRIVAL,
    chat,
    completion,
    ids_of,
    model_info,
    preparer,
)
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

from headrace.api.chat import ChatRequest
from headrace.api.decode import decode
from headrace.config.server import ServerConfig
from headrace.core.errors import (
    BadRequestError,
    ConfigError,
)
from headrace.preprocess.load import ModelText, load_text, read_template


def test_a_model_without_a_template_says_so():
    tokenizer = sentencepiece_tokenizer()
    with pytest.raises(BadRequestError, match="no chat template") as caught:
        preparer(tokenizer).chat(chat("a"), ARRIVAL)
    assert caught.value.code == "no_chat_template"


def test_a_broken_template_of_the_model_s_leaves_raw_prompts_alone():
    prepare = preparer(byte_level_tokenizer(tokenizer__chat_template="{% if %}"))
    assert prepare.completion(completion("hello"), ARRIVAL)
    with pytest.raises(BadRequestError, match="cannot be compiled") as caught:
        prepare.chat(chat("a"), ARRIVAL)
    assert caught.value.code == "no_chat_template"


def test_chatml_stands_in_where_the_tokens_are_there():
    tokenizer = byte_level_tokenizer(tokenizer__chat_template="")
    prepare = preparer(tokenizer)
    ids = ids_of(prepare.chat(chat("hello"), ARRIVAL))
    assert ids == ids_of(preparer().chat(chat("hello"), ARRIVAL))


def test_content_parts_are_joined_and_others_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts}
    request = msgspec.convert({"messages": [message]}, ChatRequest)
    prepare = preparer()
    assert ids_of(prepare.chat(request, ARRIVAL)) == ids_of(prepare.chat(chat("a\nb"), ARRIVAL))
    parts.append({"type": "image_url", "image_url": {"url": "x"}})
    request = msgspec.convert({"messages": [message]}, ChatRequest)
    with pytest.raises(BadRequestError, match="text only") as caught:
        prepare.chat(request, ARRIVAL)
    assert caught.value.param == "messages[0].content[2]"


def test_templates_see_messages_as_they_expect_them():
    template = "{{ messages | tojson }}{{ tools | tojson }}{{ reasoning_effort }}"
    call = {"id": "c", "function": {"name": "f", "arguments": '{"q": [1, "é"]}'}}
    body = {
        "messages": [
            {"role": "developer", "content": "be brief", "name": "dev"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "g", "arguments": "not json"}}]},
            {"role": "tool", "content": None, "tool_call_id": "c"},
            {"role": "assistant", "refusal": "no"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "reasoning_effort": "low",
    }  # fmt: skip
    prepare = preparer(chat_template=template, info=model_info(max_context=1000))
    request = prepare.chat(msgspec.convert(body, ChatRequest), ARRIVAL)
    text = prepare.tokenizer.decode(ids_of(request))
    assert text == (
        '[{"role": "system", "content": "be brief", "name": "dev"}, '
        '{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": '
        '{"name": "f", "arguments": {"q": [1, "é"]}}, "id": "c"}]}, '
        '{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": '
        '{"name": "g", "arguments": "not json"}}]}, '
        '{"role": "tool", "content": "", "tool_call_id": "c", "name": "f"}, '
        '{"role": "assistant", "content": "no"}]'
        '[{"type": "function", "function": {"name": "f"}}]low'
    )


def test_a_template_that_knows_developers_sees_them():
    prepare = preparer(chat_template="{{ messages[0].role }}{# developer #}")
    request = decode(b'{"messages": [{"role": "developer", "content": "x"}]}', ChatRequest)
    assert prepare.tokenizer.decode(ids_of(prepare.chat(request, ARRIVAL))) == "developer"


def test_tools_choose_the_tool_template():
    prepare = preparer(byte_level_tokenizer(tokenizer__chat_template__tool_use="tools!"))
    plain, with_tools = chat("a"), chat("a", tools=[{"function": {"name": "f"}}])
    assert "tools!" not in prepare.tokenizer.decode(ids_of(prepare.chat(plain, ARRIVAL)))
    assert prepare.tokenizer.decode(ids_of(prepare.chat(with_tools, ARRIVAL))) == "tools!"


@pytest.mark.parametrize("content", [None, "{% if %}", b"\xff"])
def test_a_template_file_that_cannot_be_used_stops_the_start(tmp_path, content):
    path = tmp_path / "t.jinja"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def start():
        text = ModelText(byte_level_tokenizer(), chat_template=read_template(str(path)))
        text.preparer(model_info(), ServerConfig(), FakeClock())

    with pytest.raises(ConfigError, match="chat template"):
        start()


def test_a_template_file_replaces_the_model_s(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.jinja").write_text("fixed")
    make_tiny_llama(tmp_path / "model")
    text = load_text(tmp_path / "model", chat_template=str(tmp_path / "t.jinja"))
    prepare = text.preparer(model_info(), ServerConfig(), FakeClock())
    assert prepare.tokenizer.decode(ids_of(prepare.chat(chat("a"), ARRIVAL))) == "fixed"
