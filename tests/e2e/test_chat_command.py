"""`headrace chat` in a pipe, against a real server."""

import subprocess
import sys


def test_two_turns_against_a_running_server(server: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "chat", "--url", server, "--temperature", "0",
         "--max-tokens", "24"],
        input="What is the capital of France?\nAnd of Italy?\n",
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert len(done.stdout.strip().splitlines()) >= 2


def test_chat_starts_a_server_for_a_model_and_ends_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "chat", "--model", "smollm2-135m", "--max-tokens", "8"],
        input="Hello\n", capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
