"""llm-comply, a conformance suite that others wrote, against a strict server: all but images pass.

Its cases for reasoning run for model names of OpenAI's and Anthropic's only, and are skipped.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.patience import PATIENCE

from headrace.cli.local_server import local_server

MODEL = "smollm2-135m"
#: The model is small and draws its words: an answer that ends at the bound is no fault of the server's.
RAMBLED = {
    "expected status='completed', got 'incomplete'",
    "finish_reason: expected 'stop', got 'length'",
    "stop_reason: expected 'end_turn', got 'max_tokens'",
}
ANTHROPIC = ("--auth-header", "x-api-key", "--no-bearer")


@pytest.fixture(scope="module")
def strict_server() -> Iterator[str]:
    with local_server([MODEL, "--strict"], ready_timeout=PATIENCE) as running:
        yield running.url


@pytest.mark.parametrize(
    ("form", "options", "prefix", "count"),
    [
        ("open-responses", (), "", 13),
        ("openai-chat", (), "chat-", 9),
        ("anthropic", ANTHROPIC, "anth-", 9),
    ],
)
def test_the_suite_passes(
    strict_server: str, form: str, options: tuple[str, ...], prefix: str, count: int
) -> None:
    program = [sys.executable, "-m", "llm_comply.cli", "--format", form, *options]
    where = ["-u", f"{strict_server}/v1", "-k", "none", "-m", MODEL, "--json"]
    done = subprocess.run(
        [*program, *where], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    results = json.loads(done.stdout)["results"]
    assert len(results) == count
    failed = {
        r["id"] for r in results if r["status"] == "failed" and not RAMBLED.issuperset(r["errors"])
    }
    assert failed == {f"{prefix}image-input"}, done.stdout
