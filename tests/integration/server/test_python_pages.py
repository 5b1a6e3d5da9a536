"""Every Python example in docs/api runs against a server, as printed but for its address."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_server import FakeServer
from tests.support.grpc_client import address_of
from tests.support.patience import PATIENCE

DOCS = Path(__file__).parents[3] / "docs" / "api"
EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("*.md"))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    with FakeServer(folder, grpc_port=0, batches={"batch_dir": str(folder / "kept")}) as running:
        yield running


def test_there_are_examples():
    assert {"grpc-0", "websocket-0"} <= {example.id for example in EXAMPLES}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(server, tmp_path, code):
    # The page of batches shows how this file is made.
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "requests.jsonl").write_text(json.dumps(line) + "\n")
    host = server.url.removeprefix("http://")
    here = code.replace("127.0.0.1:8000", host).replace("127.0.0.1:50051", address_of(server.lines))
    assert here != code
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", here],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) == ("print(" in code)
