"""Opening models: safetensors (single, sharded, hostile) and the one interface over both kinds."""

import json
import random
import struct
import subprocess
import sys

import gguf
import numpy as np
import pytest
import safetensors.numpy
from tests.support.patience import PATIENCE

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.safetensors import SafetensorsFiles


def write_file(path, header, data=b"", length=None):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(encoded) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + encoded + data)


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "limit": Infinity}')
    return tmp_path


def test_reads_what_the_reference_wrote(directory):
    rng = np.random.default_rng(0)
    arrays = {
        "a.weight": rng.standard_normal((6, 4)).astype(np.float32),
        "b.weight": rng.standard_normal((3, 2, 4)).astype(np.float16),
        "norm.weight": rng.standard_normal(5).astype(np.float16),
        "ids": np.arange(4, dtype=np.int64),
    }
    safetensors.numpy.save_file(arrays, directory / "model.safetensors", {"format": "pt"})
    checkpoint = open_checkpoint(directory)
    assert checkpoint.kind == "safetensors"
    assert checkpoint.path == directory
    assert checkpoint.config["model_type"] == "llama"
    assert {name: info.shape for name, info in checkpoint.tensors.items()} == {
        name: value.shape for name, value in arrays.items()
    }
    np.testing.assert_array_equal(checkpoint.matrix("a.weight"), arrays["a.weight"])
    np.testing.assert_array_equal(checkpoint.matrix("a.weight", (2, 5)), arrays["a.weight"][2:5])
    np.testing.assert_array_equal(checkpoint.matrix("b.weight"), arrays["b.weight"].reshape(6, 4))
    vector = checkpoint.vector("norm.weight")
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector, arrays["norm.weight"])
    with pytest.raises(UnsupportedModelError, match="type I64"):
        checkpoint.matrix("ids")
    with pytest.raises(ModelLoadError, match="has no tensor 'c'"):
        checkpoint.matrix("c")
    with pytest.raises(ModelLoadError, match="has 6 rows, but row 7"):
        checkpoint.matrix("a.weight", (0, 7))


def test_bf16_is_kept_as_bits(directory):
    bits = np.arange(12, dtype=np.uint16).reshape(3, 4) + 0x3F80
    write_file(
        directory / "model.safetensors", {"w": entry("BF16", (3, 4), (0, 24))}, bits.tobytes()
    )
    matrix = open_checkpoint(directory).matrix("w")
    assert matrix.dtype == np.uint16
    np.testing.assert_array_equal(matrix, bits)


def test_shards_are_one_model(directory):
    first = {"a": np.ones((2, 2), np.float32)}
    second = {"b": np.zeros((2, 2), np.float32)}
    safetensors.numpy.save_file(first, directory / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file(second, directory / "model-00002-of-00002.safetensors")
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(directory)
    assert [path.name for path in checkpoint.files] == sorted(index["weight_map"].values())
    np.testing.assert_array_equal(checkpoint.matrix("b"), second["b"])
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"lacks model-00002"):
        open_checkpoint(directory)


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/passwd", "..", 7])
def test_an_index_cannot_leave_its_directory(directory, name):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelLoadError, match="outside its directory"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        ({"w": entry()}, 2**60, "not a complete"),
        ({"w": entry()}, 10_000, "not a complete"),
        (b"[1, 2]", None, "damaged"),
        (b"{", None, "damaged"),
        (b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "damaged"),
        ({"w": {"dtype": "F32"}}, None, "damaged"),
        ({"w": entry(shape=(-1, -4))}, None, "impossible shape"),
        ({"w": entry(shape=(1,) * 9)}, None, "impossible shape"),
        ({"w": entry(offsets=(0, 2**62))}, None, "outside its file"),
        ({"w": entry(offsets=(8, 4))}, None, "outside its file"),
        ({"w": entry(offsets=(-16, 0))}, None, "outside its file"),
        ({"w": entry(shape=(2**40, 2**40))}, None, "as many bytes"),
        ({"w": entry(shape=(2, 3))}, None, "as many bytes"),
    ],
)
def test_refuses_hostile_headers(directory, header, length, message):
    write_file(directory / "model.safetensors", header, b"\0" * 16, length)
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(directory)


def test_damage_is_always_a_load_error(tmp_path):
    path = tmp_path / "model.safetensors"
    write_file(path, {"w": entry(), "v": entry(offsets=(16, 32))}, b"\0" * 32)
    content = path.read_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content[: rng.choice([len(content), rng.randrange(len(content))])])
        if damaged:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            files = SafetensorsFiles.open(tmp_path)
            for name, info in files.tensors.items():
                assert len(files.raw(name)) == info.nbytes
        except ModelLoadError:
            refused += 1
    assert refused > 120


def write_gguf(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", "main")
    writer.add_tensor("t", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_and_its_directory_are_the_same_model(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    for path in (tmp_path / "m.gguf", tmp_path, str(tmp_path)):
        checkpoint = open_checkpoint(path)
        assert checkpoint.kind == "gguf"
        assert checkpoint.path == tmp_path / "m.gguf"
        assert checkpoint.files == (tmp_path / "m.gguf",)
        assert checkpoint.metadata["general.name"] == "main"
        assert checkpoint.config == {}
        np.testing.assert_array_equal(checkpoint.vector("t"), np.arange(64))
    write_gguf(tmp_path / "n.gguf")
    with pytest.raises(ModelLoadError, match=r"give one of m\.gguf, n\.gguf"):
        open_checkpoint(tmp_path)


def test_what_is_no_model_is_said(tmp_path):
    with pytest.raises(ModelLoadError, match="does not exist"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"no \.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        open_checkpoint(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"2 \.safetensors files"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelLoadError, match="give its directory"):
        open_checkpoint(tmp_path / "b.safetensors")
    (tmp_path / "b.safetensors").unlink()
    write_file(tmp_path / "a.safetensors", {"w": entry()}, b"\0" * 16)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="JSON object"):
        open_checkpoint(tmp_path)


def test_opening_loads_no_arrays(tmp_path):
    """Whoever only looks at what a file says of itself pays for nothing else."""
    write_gguf(tmp_path / "m.gguf")
    code = (
        "import sys; from headrace.modeling.weights.checkpoint import open_checkpoint; "
        "c = open_checkpoint(sys.argv[1]); assert c.metadata; assert 'numpy' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.gguf")], check=True, timeout=PATIENCE
    )
