import os
import sys
from subprocess import run

import gguf
import pytest
from tests.support.nasty_text import nasty_strings
from tests.support.tiny_tokenizers import byte_level_metadata, byte_level_tokenizer

from headrace.preprocess.tokenizer import load_tokenizer
from headrace.preprocess.tokenizer_cache import cache_path, read_cached, write_cached


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "tiny.gguf", byte_level_metadata())


def write_model(path, metadata):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_cached_form_is_the_same_tokenizer(model, tmp_path):
    built, cached = (load_tokenizer(model, cache=tmp_path / "c") for _ in range(2))
    assert len(list((tmp_path / "c").iterdir())) == 1
    assert built.facts == cached.facts
    for text in nasty_strings(500):
        ids = built.encode(text)
        assert ids == cached.encode(text) == byte_level_tokenizer().encode(text)
        assert built.decode(ids) == cached.decode(ids)


def test_a_changed_file_is_read_again(model, tmp_path):
    before = cache_path(tmp_path, [model])
    load_tokenizer(model, cache=tmp_path / "c")
    write_model(model, byte_level_metadata(tokenizer__ggml__add_bos_token=True))
    assert cache_path(tmp_path, [model]) != before
    assert load_tokenizer(model, cache=tmp_path / "c").facts.prefix_ids == (1,)


def test_time_size_and_inode_are_part_of_the_name(model, tmp_path):
    names = {cache_path(tmp_path, [model])}
    os.utime(model, ns=(1, 1))
    names.add(cache_path(tmp_path, [model]))
    names.add(cache_path(tmp_path, [tmp_path / "absent"]))
    names.add(cache_path(tmp_path, [model, tmp_path / "absent"]))
    assert len(names) == 4


@pytest.mark.parametrize("damage", [b"", b"\x00", b"garbage", "half"])
def test_a_damaged_cache_is_rebuilt(model, tmp_path, damage):
    load_tokenizer(model, cache=tmp_path / "c")
    (file,) = (tmp_path / "c").iterdir()
    good = file.read_bytes()
    file.write_bytes(good[: len(good) // 2] if damage == "half" else damage)
    assert load_tokenizer(model, cache=tmp_path / "c").encode("hello")
    assert file.read_bytes() == good


def test_a_cache_that_decodes_but_cannot_be_used_is_rebuilt(model, tmp_path):
    load_tokenizer(model, cache=tmp_path / "c")
    (file,) = (tmp_path / "c").iterdir()
    data = read_cached(file)
    assert data is not None
    good = file.read_bytes()
    write_cached(file, type(data)(facts=data.facts, spec=b"{}"))
    assert load_tokenizer(model, cache=tmp_path / "c").encode("hello")
    assert file.read_bytes() == good


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(model, tmp_path):
    (tmp_path / "file").write_text("")
    assert load_tokenizer(model, cache=tmp_path / "file" / "below").encode("hello")


def test_nothing_half_written_is_left(model, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    assert load_tokenizer(model, cache=tmp_path / "c").encode("hello")
    assert list((tmp_path / "c").iterdir()) == []


def test_a_cached_start_imports_no_numpy_and_no_reader(model, tmp_path):
    load_tokenizer(model, cache=tmp_path / "c")
    code = (
        "import sys; from pathlib import Path\n"
        "from headrace.preprocess import load, prepare\n"
        "from headrace.completion import logprobs, respond\n"
        "from headrace.preprocess.tokenizer import load_tokenizer\n"
        f"load_tokenizer(Path({str(model)!r}), cache=Path({str(tmp_path / 'c')!r}))\n"
        "print(sorted({'numpy', 'torch', 'transformers', 'headrace.modeling'} & set(sys.modules)))"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
