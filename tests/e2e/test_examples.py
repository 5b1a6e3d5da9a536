"""Every example runs as it is, against a real server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_SERVER = (
    "openai_client.py",
    "stream_chat.py",
    "many_at_once.py",
    "tool_calling.py",
    "curl.sh",
    "load_test.sh",
)


def run(name: str, url: str) -> str:
    """The output of one example."""
    program = [sys.executable] if name.endswith(".py") else ["sh"]
    done = subprocess.run(
        [*program, str(EXAMPLES / name)],
        env={**os.environ, "HEADRACE_URL": url, "HEADRACE_BIN": f"{sys.executable} -m headrace"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert names == {*WITH_SERVER, "offline_llm.py"}


def test_offline_llm() -> None:
    lines = run("offline_llm.py", "http://nowhere").splitlines()
    assert lines[0].startswith("The capital of France is")
    assert "Paris" in lines[0]
    assert any(line.startswith("Water boils at") for line in lines)


def test_openai_client(server: str) -> None:
    assert " tokens in, " in run("openai_client.py", server)


def test_stream_chat(server: str) -> None:
    assert len(run("stream_chat.py", server).split()) > 10


def test_many_at_once(server: str) -> None:
    assert "same alone and in company: True" in run("many_at_once.py", server)


def test_tool_calling(server: str) -> None:
    output = run("tool_calling.py", server)
    assert output.startswith("get_weather({'city': ")
    assert len(output.splitlines()) > 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server: str) -> None:
    output = run("curl.sh", server)
    assert '"chat.completion"' in output
    assert output.rstrip().endswith("data: [DONE]")


def test_load_test(server: str) -> None:
    output = run("load_test.sh", server)
    assert "4 clients · 8 of 8 requests" in output
    assert "6 of 6 requests" in output
    assert "goodput" in output
