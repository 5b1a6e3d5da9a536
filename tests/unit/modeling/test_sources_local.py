"""Paths and short names, and which files make a model."""

from pathlib import Path

import pytest

from headrace.core.errors import ModelLoadError
from headrace.modeling.weights.sources import SHORT_NAMES, list_models, resolve, verify_model
from headrace.modeling.weights.sources.catalog import CATALOG
from headrace.modeling.weights.sources.files import model_files
from headrace.modeling.weights.sources.parts import part_names


def test_paths_are_taken_as_they_are(tmp_path, store, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file), store=store) == file
    assert resolve(str(tmp_path), store=store) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf", store=store) == file
    monkeypatch.chdir(tmp_path)
    assert resolve("m.gguf", store=store) == Path("m.gguf")


def test_a_short_name_means_the_same_in_every_folder(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()

    def fetch(files, work):
        (files / "m.gguf").write_bytes(b"GGUF")
        return "m.gguf"

    fetched = store.obtain("smollm2-135m", "smollm2-135m", fetch)
    assert resolve("smollm2-135m", store=store) == fetched
    for path in ("./smollm2-135m", "smollm2-135m/", str(tmp_path / "smollm2-135m")):
        assert resolve(path, store=store).samefile(tmp_path / "smollm2-135m")


@pytest.mark.parametrize("source", ["smolm2-135m", "SmolLM2-135M", "smolm", "gpt5"])
def test_an_unknown_name_lists_those_there_are(source, store):
    with pytest.raises(ModelLoadError) as failed:
        resolve(source, store=store)
    sentence = str(failed.value)
    assert all(name in sentence for name in ("smollm2-135m", "gemma-3-270m", "hf:", "s3://"))
    assert ("Did you mean smollm2-135m?" in sentence) == ("smol" in source.lower())


@pytest.mark.parametrize("source", ["/none/there.gguf", "there.gguf", "org/name"])
def test_a_path_that_is_not_there_is_told_so(source, store):
    with pytest.raises(ModelLoadError, match=f"{source} does not exist.*hf:"):
        resolve(source, store=store)


def test_the_default_model_is_cached_with_its_digest():
    path = resolve("smollm2-135m", progress=False)
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert resolve("smollm2-135m") == path
    (model,) = [model for model in list_models() if model.name == "smollm2-135m"]
    assert model.sha256 == CATALOG["smollm2-135m"].sha256
    assert model.num_bytes == 98_362_432
    assert verify_model("smollm2-135m")


def test_short_names_have_exact_versions_and_digests():
    assert SHORT_NAMES == ("smollm2-135m", "gemma-3-270m")
    for entry in CATALOG.values():
        assert len(entry.sha256) == 64
        assert all("==" in package for package in entry.packages)


def test_files_that_make_a_model():
    names = ["config.json", "model.safetensors", "tokenizer.model", "pytorch_model.bin",
             "consolidated.safetensors", "onnx/config.json", "../x.json", "/etc/x.json",
             "additional_chat_templates/a.jinja", "additional_chat_templates/../a.jinja", "README.md"]  # fmt: skip
    assert model_files(names) == [
        "additional_chat_templates/a.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.model",
    ]


def test_parts_of_a_split_file():
    assert part_names("d/m-00002-of-00003.gguf") == [
        "d/m-00001-of-00003.gguf",
        "d/m-00002-of-00003.gguf",
        "d/m-00003-of-00003.gguf",
    ]
    assert part_names("m-00002-of-99999.gguf") == ["m-00002-of-99999.gguf"]
    assert part_names("m.gguf") == ["m.gguf"]
