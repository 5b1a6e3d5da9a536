"""Every shell example in docs/api, and in guides about requests, runs against a server, and answers with the fields that the page shows."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.fake_server import FakeServer
from tests.support.patience import PATIENCE

DOCS = Path(__file__).parents[3] / "docs"
GUIDES = [DOCS / "guides" / f"{name}.md" for name in ("tool-calling", "reasoning")]
PAGES = [*sorted((DOCS / "api").glob("*.md")), *GUIDES]
BLOCK = re.compile(r"```sh\n(.*?)```(?:\n+```json\n(.*?)```)?", re.DOTALL)
EXAMPLES = [
    pytest.param(*found, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, found in enumerate(BLOCK.findall(page.read_text()))
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A slow one: what is to be ended must still run."""
    folder = tmp_path_factory.mktemp("pages")
    batches = {"batch_dir": str(folder / "batches")}
    (folder / "adapters" / "sql").mkdir(parents=True)
    with FakeServer(
        folder,
        engine={"step": 0.01},
        lora_root=folder / "adapters",
        resume_window=1 << 20,
        batches=batches,
    ) as running:
        yield running


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_the_example_runs(server, tmp_path, command, shown):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert "http://127.0.0.1:8000" in command
    done = subprocess.run(
        ["bash", "-euc", command.replace("http://127.0.0.1:8000", server.url)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    if shown:
        assert json.loads(shown).keys() <= json.loads(done.stdout).keys()
