import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.modeling.weights.sources.store import ModelStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """A cache with one model of 1 KiB."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    store = ModelStore(tmp_path / "models")

    def fetch(files: Path, _: Path) -> str:
        (files / "m.gguf").write_bytes(b"GGUF" + bytes(1020))
        return "m.gguf"

    store.obtain("tiny", "https://x/m.gguf", fetch)
    return store


def test_list(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "tiny  1 KiB" in shown
    assert "from https://x/m.gguf" in shown
    assert "not fetched yet: gemma-3-270m, smollm2-135m" in shown
    assert main(["models", "list", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)
    assert (model["name"], model["num_bytes"]) == ("tiny", 1024)


def test_pull_of_a_path_prints_it(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "pull", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_verify_and_remove(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "verify", "tiny"]) == 0
    path = store.find("tiny")
    assert path is not None
    path.write_bytes(b"GGUF" + b"\1" * 1020)
    assert main(["models", "verify", "tiny"]) == 1
    assert main(["models", "remove", "https://x/m.gguf"]) == 0
    assert store.find("tiny") is None
    assert "damaged" in capsys.readouterr().out


def test_what_is_not_there_is_one_sentence(
    store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "remove", "other"]) == 2
    assert "tiny" in capsys.readouterr().err
