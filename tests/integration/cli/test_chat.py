import io
import sys

import pytest
from tests.support.fake_sse import FakeSSE, serve

from headrace.cli.chat import Conversation
from headrace.cli.main import main


class Pipe(io.StringIO):
    def isatty(self) -> bool:
        return False


class Terminal(io.StringIO):
    """Lines that input() gives; an exception is raised instead."""

    def isatty(self) -> bool:
        return True


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(text))


def test_each_piped_line_is_a_turn_of_one_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "hello\n\nand again\n")
    with serve(FakeSSE(words=("Bon", "jour", " é"))) as fake:
        status = main(
            ["chat", "--url", fake.url, "--system", "Be brief.", "--max-tokens", "9",
             "--temperature", "0", "--seed", "4"]
        )  # fmt: skip
    assert status == 0
    assert capsys.readouterr().out == "Bonjour é\nBonjour é\n"
    first, second = fake.bodies
    assert first == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
        ],
        "stream": True,
        "model": "fake",
        "max_tokens": 9,
        "temperature": 0.0,
        "seed": 4,
    }
    assert [message["role"] for message in second["messages"]] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip
    assert second["messages"][2]["content"] == "Bonjour é"


def test_commands_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "one\n/reset\ntwo\n/system Pirate.\nthree\n/exit\nnever\n")
    with serve(FakeSSE(words=("x",))) as fake:
        assert main(["chat", "--url", fake.url]) == 0
    sent = [[message["content"] for message in body["messages"]] for body in fake.bodies]
    assert sent == [["one"], ["two"], ["Pirate.", "three"]]
    assert capsys.readouterr().out == "x\nx\nx\n"


def test_a_terminal_goes_on_after_errors_and_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(
        ["hello", KeyboardInterrupt(), "/nope", "/help", "/etc/passwd is what?", EOFError()]
    )

    def typed(_: str) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", Terminal())
    with serve(FakeSSE(words=("x",))) as fake:
        assert main(["chat", "--url", fake.url]) == 0
    captured = capsys.readouterr()
    assert "Unknown command /nope" in captured.err
    assert "/reset" in captured.out
    assert "Ctrl-D ends the chat" in captured.out
    assert fake.bodies[1]["messages"][-1]["content"] == "/etc/passwd is what?"


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli import chat, chat_client

    class Interrupted(chat_client.ChatClient):
        def stream(self, messages, **options):  # type: ignore[no-untyped-def]
            yield "half "
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Terminal())
    conversation = Conversation(None)
    chat._ask("q", Interrupted("http://h"), conversation, {})
    assert capsys.readouterr().out == "half \n"
    assert [message["content"] for message in conversation.messages] == ["q", "half "]


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakeSSE(status=429), "no: 429"),
        (FakeSSE(words=("x",), ending="cut"), "broke"),
        (FakeSSE(words=("x",), ending="error"), "engine died"),
    ],
)
def test_a_failed_piped_question_ends_with_its_reason(
    fake: FakeSSE,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipe(monkeypatch, "hello\n")
    with serve(fake):
        assert main(["chat", "--url", fake.url]) == 1
    assert message in capsys.readouterr().err


def test_no_server_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "hello\n")
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2
    assert "Start one with `headrace serve`" in capsys.readouterr().err
