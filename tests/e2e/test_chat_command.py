"""`headrace chat` in a pipe, against a real server."""

import json
import subprocess
import sys
import urllib.request

import pytest
from tests.support.patience import PATIENCE


def chat(*flags: str, text: str) -> str:
    """What the command prints when `text` is piped into it."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "chat", *flags],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(url: str, messages: list[dict[str, str]]) -> str:
    """The same, asked over the API."""
    body = json.dumps({"messages": messages, "max_tokens": 12, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        content: str = json.load(response)["choices"][0]["message"]["content"]
    return content


def test_two_turns_are_one_conversation(server: str) -> None:
    flags = ("--url", server, "--temperature", "0", "--max-tokens", "12")
    printed = chat(*flags, text="Name a colour.\nAnd another?\n")
    messages = [{"role": "user", "content": "Name a colour."}]
    first = answer(server, messages)
    messages += [
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And another?"},
    ]
    assert printed == f"{first}\n{answer(server, messages)}\n"


def test_a_server_is_started_for_a_model() -> None:
    assert chat("--model", "smollm2-135m", "--max-tokens", "8", text="Hello\n").strip()


def test_a_server_of_its_own_is_not_locked_by_the_operator_s_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEYS", "sk-of-others")
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", "/nowhere/keys")
    monkeypatch.setenv("HEADRACE_SSL_CERTFILE", "/nowhere/server.pem")
    assert chat("--model", "smollm2-135m", "--max-tokens", "4", text="Hello\n").strip()
