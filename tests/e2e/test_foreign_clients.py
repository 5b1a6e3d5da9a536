"""Official clients and frameworks, each doing chat, streams, tools and structured output with a real model.

The Python ones have a virtual environment of their own, the others what npm installs; see `tests/e2e/clients`.
"""

import re
import shutil
from pathlib import Path

import pytest
from tests.support.client_software import HERE, node_environment, python_environment, run_client

pytestmark = pytest.mark.timeout(900)  # the first run installs them

MIN_LANGCHAIN = 36
"""Tests of LangChain's that pass; the others need another model or record HTTP."""


@pytest.fixture(scope="module")
def client_python() -> Path:
    return python_environment(HERE / "requirements.txt")


@pytest.fixture(scope="module")
def node(client_python: Path) -> tuple[Path, Path]:
    return node_environment(client_python, HERE / "package.json")


@pytest.mark.parametrize("program", ["anthropic", "instructor", "pydantic_ai"])
def test_a_python_client(client_python: Path, server: str, program: str) -> None:
    run_client(client_python, HERE / f"{program}_client.py", url=server)


@pytest.mark.parametrize("program", ["openai_client", "ai_sdk"])
def test_a_node_client(node: tuple[Path, Path], server: str, program: str) -> None:
    executable, folder = node
    # Node looks for packages beside the program.
    copy = shutil.copy(HERE / f"{program}.mjs", folder)
    assert run_client(executable, copy, url=server).endswith("ok\n")


def test_langchain_standard_suite(client_python: Path, server: str, tmp_path: Path) -> None:
    options = {
        "asyncio_mode": "auto",
        "asyncio_default_fixture_loop_scope": "session",
        "asyncio_default_test_loop_scope": "session",
    }
    command = ["-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["--rootdir", str(tmp_path), "--timeout", "60", "-q", "--tb=short"]
    command += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    output = run_client(client_python, *command, HERE / "langchain_suite.py", url=server)
    found = re.search(r"(\d+) passed", output)
    assert found is not None
    assert int(found[1]) >= MIN_LANGCHAIN, output
