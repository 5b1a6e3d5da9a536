"""The packed cache: a second start maps it, and nothing that happens to it stops a start."""

import errno
import fcntl
import logging
import multiprocessing
import os
import random

import numpy as np
import pytest
import safetensors.numpy
from tests.support.patience import PATIENCE

from headrace.modeling.weights import packed_cache
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters
from headrace.modeling.weights.packed_cache import CacheKey, read_entry
from headrace.modeling.weights.parameters import ParameterKind, ParameterSpec, Source

SPECS = [
    ParameterSpec("w", ParameterKind.LINEAR, (Source("a"), Source("b"))),
    ParameterSpec("norm", ParameterKind.VECTOR, (Source("n"),)),
]


def write_model(directory, seed=0):
    rng = np.random.default_rng(seed)
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text("{}")
    arrays = {
        "a": rng.standard_normal((20, 64)).astype(np.float32),
        "b": rng.standard_normal((4, 64)).astype(np.float16),
        "n": rng.standard_normal(7).astype(np.float32),
    }
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")
    return directory


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "packed"


def load(model, cache, **options):
    return load_parameters(open_checkpoint(model), SPECS, cache=cache, **options)


def entries(cache):
    return sorted(cache.glob("*.packed"))


def assert_same(first, second):
    assert list(first) == list(second)
    assert first.digest == second.digest
    for mine, other in zip(first["w"], second["w"], strict=True):
        assert mine.first_column == other.first_column
        assert (mine.weight.format, mine.weight.num_outputs) == (
            other.weight.format,
            other.weight.num_outputs,
        )
        np.testing.assert_array_equal(mine.weight.data, other.weight.data)
    np.testing.assert_array_equal(first["norm"], second["norm"])


def test_the_second_start_maps_what_the_first_one_packed(model, cache, monkeypatch):
    in_memory = load(model, None)
    assert not in_memory.is_mapped
    first = load(model, cache)
    assert_same(first, in_memory)
    assert len(entries(cache)) == 1

    def fail(*_):
        raise AssertionError("a cached start must convert nothing and read no weight file")

    monkeypatch.setattr("headrace.modeling.weights.convert.Converter.convert", fail)
    monkeypatch.setattr("headrace.modeling.weights.digest.ContentDigest.__enter__", fail)
    second = load(model, cache)
    assert second.is_mapped
    assert_same(second, in_memory)
    assert second.num_bytes == in_memory.num_bytes


def test_mapped_arrays_are_aligned_and_read_only(model, cache):
    load(model, cache)
    weights = load(model, cache)
    arrays = [part.weight.data for part in weights["w"]] + [weights["norm"]]
    for array in arrays:
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable


def test_whatever_changes_the_weights_changes_the_entry(model, cache):
    load(model, cache)
    load(model, cache, isa="avx2")
    load(model, cache, quantize="int8")
    assert len(entries(cache)) == 3
    old = load(model, cache)
    os.utime(model / "model.safetensors", ns=(1, 1))
    load(model, cache)
    assert len(entries(cache)) == 4
    write_model(model, seed=1)
    new = load(model, cache)
    assert new.digest != old.digest
    other = [ParameterSpec("norm", ParameterKind.VECTOR, (Source("n", (0, 3)),))]
    narrow = load_parameters(open_checkpoint(model), other, cache=cache)
    assert len(narrow["norm"]) == 3


def damage_cut(content):
    return content[: len(content) // 2]


def damage_table(content):
    content[-20] ^= 0xFF
    return content


def damage_prefix(content):
    content[9] ^= 0xFF
    return content


def damage_data(content):
    content[4096:8192] = bytes(4096)
    return content


def damage_growth(content):
    return content + b"more"


def damage_all(content):
    return b""


@pytest.mark.parametrize(
    "damage",
    [damage_cut, damage_table, damage_prefix, damage_data, damage_growth, damage_all],
)
def test_a_damaged_entry_is_rebuilt(model, cache, damage, caplog):
    wanted = load(model, None)
    load(model, cache)
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    entry.write_bytes(damage(bytearray(whole)))
    with caplog.at_level(logging.WARNING):
        assert_same(load(model, cache), wanted)
    assert "damaged" in caplog.text
    assert entry.read_bytes() == whole


def test_random_damage_never_raises(model, cache):
    load(model, cache)
    (entry,) = entries(cache)
    content = entry.read_bytes()
    key = CacheKey.of(open_checkpoint(model), SPECS, isa="generic", quantize=None)
    assert read_entry(cache, key) is not None
    rng = random.Random(11)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content[: rng.choice([len(content), rng.randrange(len(content))])])
        for _ in range(rng.randrange(1, 4)):
            if damaged:
                place = rng.choice([rng.randrange(64), rng.randrange(len(damaged))])
                damaged[min(place, len(damaged) - 1)] ^= 1 << rng.randrange(8)
        entry.unlink()
        entry.write_bytes(damaged)
        refused += read_entry(cache, key) is None
    assert refused > 200


def test_another_version_is_not_read(model, cache, monkeypatch):
    load(model, cache)
    (first,) = entries(cache)
    monkeypatch.setattr(packed_cache, "VERSION", packed_cache.VERSION + 1)
    load(model, cache)
    assert len(entries(cache)) == 2
    assert first in entries(cache)


def test_a_full_disk_costs_a_warning(model, cache, monkeypatch, caplog):
    wanted = load(model, None)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packed_cache.EntryWriter, "add", full)
    with caplog.at_level(logging.WARNING):
        found = load(model, cache)
    assert not found.is_mapped
    assert_same(found, wanted)
    assert "No space left" in caplog.text
    assert list(cache.iterdir()) == []


def test_a_nearly_full_disk_is_not_filled(model, cache, monkeypatch, caplog):
    monkeypatch.setattr(packed_cache, "DISK_MARGIN_BYTES", 1 << 62)
    with caplog.at_level(logging.WARNING):
        assert not load(model, cache).is_mapped
    assert "nearly full" in caplog.text
    assert not cache.exists()


def test_a_cache_that_cannot_be_made_costs_a_warning(model, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert not load(model, tmp_path / "file" / "packed").is_mapped
    assert "not kept" in caplog.text


def test_an_error_while_packing_leaves_nothing(model, cache, monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr("headrace.modeling.weights.convert.Converter._vector", fail)
    with pytest.raises(RuntimeError):
        load(model, cache)
    assert list(cache.iterdir()) == []


def test_the_entries_used_least_recently_go(model, cache, monkeypatch):
    for isa in ("one", "two", "three"):
        load(model, cache, isa=isa)
        newest = max(entries(cache), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(10**9, {"one": 1, "two": 2, "three": 3}[isa] * 10**9))
    by_age = sorted(entries(cache), key=lambda path: path.stat().st_mtime_ns)
    load(model, cache, isa="one")  # used again: now the newest
    size = by_age[0].stat().st_size
    monkeypatch.setattr(packed_cache, "MAX_CACHE_BYTES", int(3.5 * size))
    load(model, cache, isa="four")
    left = entries(cache)
    assert len(left) == 3
    assert by_age[0] in left
    assert by_age[1] not in left


def test_what_a_crashed_writer_left_goes(model, cache):
    cache.mkdir(parents=True)
    abandoned = cache / ".x.packed.1-aa.tmp"
    abandoned.write_bytes(b"half")
    busy = cache / ".y.packed.2-bb.tmp"
    with busy.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        load(model, cache)
        assert not abandoned.exists()
        assert busy.exists()


def _load_in_child(model, cache, results):
    results.put((load(model, cache).digest, os.getpid()))


def test_several_processes_may_start_at_once(model, cache):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [
        context.Process(target=_load_in_child, args=(model, cache, results)) for _ in range(3)
    ]
    for child in children:
        child.start()
    digests = {results.get(timeout=PATIENCE)[0] for _ in children}
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0
    assert digests == {load(model, None).digest}
    assert len(list(cache.iterdir())) == 1
    assert load(model, cache).is_mapped
