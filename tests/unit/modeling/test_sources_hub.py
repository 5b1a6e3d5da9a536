"""The Hugging Face hub, offline."""

import json
import subprocess
import sys

import pytest
from tests.support.patience import PATIENCE

from headrace.config import env
from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources import resolve

COMMIT = "a" * 40


@pytest.fixture
def hub_home(tmp_path):
    """A hub cache as its library writes it, so that offline mode finds two repositories."""
    repositories = {
        "org--dir": {"config.json": "{}", "model.safetensors": "x", "tokenizer.json": "{}"},
        "org--ggufs": {
            "m.gguf": "GGUF",
            "n-00001-of-00002.gguf": "1",
            "n-00002-of-00002.gguf": "2",
        },
    }
    for name, files in repositories.items():
        repository = tmp_path / "hub" / f"models--{name}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for file, content in files.items():
            (snapshot / file).write_text(content)
    return tmp_path


def run_offline(home, *sources):
    """In a process of its own, as the library reads its settings when it is imported."""
    code = (
        "import json, sys\n"
        "from headrace.core.errors import DownloadError\n"
        "from headrace.modeling.weights.sources import resolve\n"
        "found = []\n"
        "for source in sys.argv[1:]:\n"
        "    assert 'torch' not in sys.modules\n"
        "    try:\n"
        "        found.append(str(resolve(source, progress=False)))\n"
        "    except DownloadError as error:\n"
        "        found.append(repr(error))\n"
        "print(json.dumps(found))\n"
    )
    changes = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(home / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", code, *sources],
        env=env.child(changes),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return json.loads(done.stdout)


def test_the_hub_offline(hub_home):
    directory, file, split, no_weights, absent = run_offline(
        hub_home,
        "hf:org/dir",
        "hf:org/ggufs:m.gguf",
        "hf:org/ggufs:n-00002-of-00002.gguf",
        "hf:org/ggufs",
        "hf:org/absent:m.gguf",
    )
    snapshots = hub_home / "hub"
    assert directory == str(snapshots / f"models--org--dir/snapshots/{COMMIT}")
    assert file == str(snapshots / f"models--org--ggufs/snapshots/{COMMIT}/m.gguf")
    assert split.endswith("n-00001-of-00002.gguf")
    assert "give one: hf:org/ggufs:FILE.gguf" in no_weights
    assert absent.startswith("DownloadError")
    assert "hf:org/absent:m.gguf could not be fetched" in absent


@pytest.mark.parametrize("source", ["hf:", "hf:name", "hf:a/b/c", "hf:a/b:", "hf:a/b:c:d"])
def test_hub_sources_that_are_no_repository(source, store):
    with pytest.raises(DownloadError, match="is not of the form hf:org/name"):
        resolve(source, store=store)
