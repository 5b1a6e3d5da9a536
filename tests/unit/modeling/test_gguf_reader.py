"""The GGUF header reader: what it reads, what it refuses, and that damage costs no memory."""

import random
import resource
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.weights.gguf import GGUFFile


def write_sample(path: Path, *, alignment: int = 32) -> dict[str, np.ndarray]:
    """A small file with every metadata kind, written by the reference package."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -3)
    writer.add_uint16("x.u16", 60_000)
    writer.add_int16("x.i16", -30_000)
    writer.add_uint32("x.u32", 4_000_000_000)
    writer.add_int32("x.i32", -2_000_000_000)
    writer.add_uint64("x.u64", 2**63)
    writer.add_int64("x.i64", -(2**62))
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 1e300)
    writer.add_bool("x.yes", True)
    writer.add_bool("x.no", False)
    writer.add_string("x.text", "Grüße, 世界")
    writer.add_array("x.texts", ["a", "", "ü" * 300, "\u2581the"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, -0.25])
    writer.add_array("x.flags", [True, False, True])
    rng = np.random.default_rng(0)
    arrays = {
        "norm.weight": rng.standard_normal(7).astype(np.float32),
        "a.weight": rng.standard_normal((6, 64)).astype(np.float16),
        "b.weight": rng.standard_normal((3, 5, 32)).astype(np.float32),
    }
    for name, value in arrays.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


@pytest.mark.parametrize("alignment", [32, 256])
def test_reads_what_the_reference_wrote(tmp_path, alignment):
    path = tmp_path / "m.gguf"
    arrays = write_sample(path, alignment=alignment)
    file = GGUFFile.open(path)
    metadata = file.metadata
    assert metadata["general.architecture"] == "llama"
    assert (metadata["x.u8"], metadata["x.i8"]) == (200, -3)
    assert (metadata["x.u16"], metadata["x.i16"]) == (60_000, -30_000)
    assert (metadata["x.u32"], metadata["x.i32"]) == (4_000_000_000, -2_000_000_000)
    assert (metadata["x.u64"], metadata["x.i64"]) == (2**63, -(2**62))
    assert (metadata["x.f32"], metadata["x.f64"]) == (0.5, 1e300)
    assert metadata["x.yes"] is True
    assert metadata["x.no"] is False
    assert metadata["x.text"] == "Grüße, 世界"
    assert metadata["x.texts"] == ["a", "", "ü" * 300, "\u2581the"]
    assert metadata["x.ints"] == [1, -2, 3]
    assert metadata["x.floats"] == [0.5, -0.25]
    assert metadata["x.flags"] == [True, False, True]
    assert "x.none" not in metadata
    assert metadata.get("x.none") is None
    assert set(file.tensors) == set(arrays)
    for name, value in arrays.items():
        info = file.tensors[name]
        assert info.shape == value.shape
        assert info.offset % alignment == 0
        assert bytes(file.raw(name)) == value.tobytes()
        assert file.raw(name).readonly


def test_split_models_open_from_any_part(tmp_path):
    expected = {}
    for number in range(3):
        path = tmp_path / f"m-{number + 1:05d}-of-00003.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_string("x.part", f"part {number}")
        expected[f"t{number}"] = np.full((2, 32), number, np.float32)
        writer.add_tensor(f"t{number}", expected[f"t{number}"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    file = GGUFFile.open(tmp_path / "m-00002-of-00003.gguf")
    assert file.metadata["x.part"] == "part 0"
    assert {n: bytes(file.raw(n)) for n in file.tensors} == {
        n: v.tobytes() for n, v in expected.items()
    }
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelLoadError, match="lacks its part m-00003-of-00003"):
        GGUFFile.open(tmp_path / "m-00001-of-00003.gguf")
    (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelLoadError, match="does not say which"):
        GGUFFile.open(tmp_path / "renamed.gguf")


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(*, version=3, tensors=0, entries=0, body=b"", order="<", padding=b"\0" * 256) -> bytes:
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, entries) + body + padding


def tensor(name=b"t", dims=(32,), kind=0, offset=0, num_dims=None) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return (
        text(name)
        + struct.pack("<I", count)
        + b"".join(struct.pack("<Q", size) for size in dims)
        + struct.pack("<IQ", kind, offset)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF"),
        (b"GG", "not a GGUF"),
        (b"GGML" + b"\0" * 64, "not a GGUF"),
        (b"GGUF", "cut off"),
        (header(version=1), "version 1"),
        (header(order=">"), "big endian"),
        (header(tensors=2**60), "too short for the tensor infos"),
        (header(entries=2**63), "too short for the metadata entries"),
        (header(entries=1, body=text(b"k") + struct.pack("<I", 99)), "unknown type 99"),
        (header(entries=1, body=struct.pack("<Q", 2**40)), "name of 1099511627776 bytes"),
        (header(entries=1, body=text(b"\xff\xfe") + b"\0" * 8), "not UTF-8"),
        (header(entries=2, body=(text(b"k") + struct.pack("<IB", 0, 1)) * 2), "'k' twice"),
        (
            header(entries=1, body=text(b"k") + struct.pack("<IQ", 8, 2**63)),
            "cut off or damaged",
        ),
        (
            header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 8, 2**50)),
            "array of 1125899906842624",
        ),
        (
            header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 4, 2**20)),
            "too short for the values",
        ),
        (header(entries=1, body=text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "unknown type 9"),
        (
            header(entries=1, body=text(b"general.alignment") + struct.pack("<II", 4, 33)),
            "unusable alignment",
        ),
        (
            header(
                entries=1, body=text(b"general.alignment") + struct.pack("<I", 8) + text(b"x" * 90)
            ),
            "unusable alignment",
        ),
        (header(tensors=1, body=tensor(num_dims=5)), "5 dimensions"),
        (header(tensors=1, body=tensor(num_dims=0)), "0 dimensions"),
        (header(tensors=1, body=tensor(dims=(0,))), "rows of 0 elements"),
        (header(tensors=1, body=tensor(dims=(40,), kind=2)), "Q4_0 cannot hold"),
        (header(tensors=1, body=tensor(dims=(2**62, 2**62))), "cut off"),
        (header(tensors=1, body=tensor(offset=2**62)), "cut off"),
        (header(tensors=1, body=tensor(offset=3)), "not aligned"),
        (header(tensors=2, body=tensor() * 2), "is there twice"),
        (header(tensors=1, body=tensor(kind=77)), "unknown type number 77; supported are F32"),
    ],
)
def test_refuses_hostile_headers(tmp_path, content, message):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        GGUFFile.open(path)


def test_an_unknown_tensor_type_is_its_own_error(tmp_path):
    path = tmp_path / "new.gguf"
    path.write_bytes(header(tensors=1, body=tensor(kind=77)))
    with pytest.raises(UnsupportedModelError):
        GGUFFile.open(path)


def test_missing_file_and_directory(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelLoadError, match="cannot be read"):
            GGUFFile.open(path)


def test_damage_is_an_error_and_takes_no_memory(tmp_path):
    """Random cuts and flipped bits: either it still reads, or ModelLoadError; memory stays flat."""
    whole = tmp_path / "m.gguf"
    write_sample(whole)
    content = whole.read_bytes()
    rng = random.Random(7)
    path = tmp_path / "damaged.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for _ in range(600):
        damaged = bytearray(content[: rng.choice([len(content), rng.randrange(len(content))])])
        for _ in range(rng.randrange(1, 6)):
            if damaged:
                damaged[rng.randrange(min(len(damaged), 1400))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            file = GGUFFile.open(path)
            for key in file.metadata:
                assert file.metadata[key] is not None
            for name in file.tensors:
                assert len(file.raw(name)) == file.tensors[name].nbytes
        except ModelLoadError:
            refused += 1
    assert refused > 120
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 * 1024
