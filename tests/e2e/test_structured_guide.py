"""Every example of the guide to structured output runs as it is, against a real server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "structured-output.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
SHELL = [text for kind, text in BLOCKS if kind == "sh"]


def output(command: list[str], url: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "HEADRACE_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_schema_is_fulfilled(server: str) -> None:
    assert 0 <= len(output([sys.executable, "-c", PYTHON[0]], server)) <= 30


def test_the_offline_year_matches(server: str) -> None:
    assert re.fullmatch("19[0-9]{2}", output([sys.executable, "-c", PYTHON[1]], server))
    assert len(PYTHON) == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_choice_is_one_of_two(server: str) -> None:
    assert len(SHELL) == 1
    answer = json.loads(output(["sh", "-c", SHELL[0].replace("http://127.0.0.1:8000", server)], ""))
    assert answer["choices"][0]["message"]["content"] in ("yes", "no")
