"""From checkpoint to packed parameters: every transform, joining, errors, and the cache's key."""

import copy
import logging

import gguf
import numpy as np
import pytest
import safetensors.numpy

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.kernels.formats import WeightFormat
from headrace.kernels.packing import unpack
from headrace.modeling.quantization.dequantize import dequantize
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters
from headrace.modeling.weights.parameters import ParameterKind, ParameterSpec, Source, Transform

RNG = np.random.default_rng(5)
ARRAYS = {
    "q": RNG.standard_normal((32, 64)).astype(np.float16),
    "k": RNG.standard_normal((16, 64)).astype(np.float16),
    "v": RNG.standard_normal((16, 64)).astype(np.float32),
    "narrow": RNG.standard_normal((8, 32)).astype(np.float32),
    "norm": RNG.standard_normal(64).astype(np.float16),
    "bias": np.arange(32, dtype=np.float32),
    "bad": np.array([1.0, np.nan], np.float32),
    "bad_matrix": np.full((2, 32), np.inf, np.float32),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text("{}")
    safetensors.numpy.save_file(ARRAYS, directory / "model.safetensors")
    return open_checkpoint(directory)


def linear(*sources, **options):
    return ParameterSpec("w", ParameterKind.LINEAR, tuple(sources), **options)


def vector(*sources):
    return ParameterSpec("v", ParameterKind.VECTOR, tuple(sources))


def load_one(checkpoint, spec, **options):
    return load_parameters(checkpoint, [spec], **options)[spec.name]


def test_adjacent_sources_of_one_format_become_one_part(checkpoint):
    parts = load_one(checkpoint, linear(Source("q"), Source("k"), Source("v")))
    assert [(p.weight.format, p.first_column, p.weight.num_outputs) for p in parts] == [
        (WeightFormat.F16, 0, 48),
        (WeightFormat.F32, 48, 16),
    ]
    np.testing.assert_array_equal(
        unpack(parts[0].weight), np.concatenate([ARRAYS["q"], ARRAYS["k"]])
    )
    np.testing.assert_array_equal(unpack(parts[1].weight), ARRAYS["v"])
    apart = load_one(checkpoint, linear(Source("q"), Source("v"), Source("k")))
    assert [part.first_column for part in apart] == [0, 32, 48]


def interleave(rows, num_heads):
    """What GGUF's conversion of Llama does to rows of query and key heads."""
    heads = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, -1)
    return heads.swapaxes(1, 2).reshape(rows.shape)


def test_unpermute_undoes_the_conversion(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    stored = {
        "q": interleave(ARRAYS["q"], 4),
        "b": np.ascontiguousarray(interleave(ARRAYS["bias"], 4)),
    }
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    source = Source("q", transform=Transform.UNPERMUTE, num_heads=4)
    (part,) = load_one(checkpoint, linear(source))
    np.testing.assert_array_equal(unpack(part.weight), ARRAYS["q"])
    # A shard's rows: whole heads, taken before the order is undone.
    shard = Source("q", (8, 24), Transform.UNPERMUTE, num_heads=2)
    (part,) = load_one(checkpoint, linear(shard))
    np.testing.assert_array_equal(unpack(part.weight), ARRAYS["q"][8:24])
    bias = load_one(checkpoint, vector(Source("b", transform=Transform.UNPERMUTE, num_heads=4)))
    np.testing.assert_array_equal(bias, ARRAYS["bias"])


def test_unpermute_moves_codes_and_scales_together(checkpoint):
    source = Source("q", transform=Transform.UNPERMUTE, num_heads=4)
    (part,) = load_one(checkpoint, linear(source), quantize="int8")
    heads = ARRAYS["q"].astype(np.float32).reshape(4, 4, 2, 64)
    wanted = heads.swapaxes(1, 2).reshape(32, 64)
    np.testing.assert_allclose(unpack(part.weight), wanted, atol=0.02)


def test_vectors(checkpoint):
    plain = load_one(checkpoint, vector(Source("norm")))
    assert plain.dtype == np.float32
    np.testing.assert_array_equal(plain, ARRAYS["norm"])
    plus_one = load_one(checkpoint, vector(Source("norm", transform=Transform.ADD_ONE)))
    np.testing.assert_array_equal(plus_one, ARRAYS["norm"].astype(np.float32) + 1)
    joined = load_one(checkpoint, vector(Source("bias", (4, 8)), Source("bias", (0, 2))))
    np.testing.assert_array_equal(joined, [4, 5, 6, 7, 0, 1])


@pytest.mark.parametrize(
    ("option", "min_bits", "wanted"),
    [
        ("int8", 4, WeightFormat.W8G32),
        ("int4", 4, WeightFormat.W4G32),
        ("int4", 8, WeightFormat.W8G32),
    ],
)
def test_quantising_joins_what_was_apart(checkpoint, option, min_bits, wanted):
    spec = linear(Source("q"), Source("k"), Source("v"), min_bits=min_bits)
    (part,) = load_one(checkpoint, spec, quantize=option)
    assert part.weight.format is wanted
    assert part.weight.num_outputs == 64
    stacked = np.concatenate([ARRAYS[n].astype(np.float32) for n in "qkv"])
    error = np.abs(unpack(part.weight) - stacked).max()
    assert error < (0.3 if wanted is WeightFormat.W4G32 else 0.03)


def test_the_digest_names_content_and_quantisation(checkpoint, tmp_path):
    specs = [linear(Source("q"))]
    digest = load_parameters(checkpoint, specs).digest
    assert len(digest) == 64
    assert load_parameters(checkpoint, specs).digest == digest
    assert load_parameters(checkpoint, specs, quantize="int4").digest != digest
    changed = {**ARRAYS, "q": ARRAYS["q"] + np.float16(1)}
    (tmp_path / "config.json").write_text("{}")
    safetensors.numpy.save_file(changed, tmp_path / "model.safetensors")
    assert load_parameters(open_checkpoint(tmp_path), specs).digest != digest


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (linear(Source("none")), "lacks the tensor 'none' for 'w'"),
        (linear(), "lacks any tensor for 'w'"),
        (linear(Source("q"), Source("narrow")), r"differ in width: \[32, 64\]"),
        (linear(Source("q", (0, 33))), "has 32 rows, but 0 to 33 are needed"),
        (linear(Source("q", (8, 8))), "has no rows"),
        (linear(Source("q", transform=Transform.ADD_ONE)), "add_one is for vectors"),
        (linear(Source("q", transform=Transform.UNPERMUTE)), "do not make 0 rotated heads"),
        (
            linear(Source("q", transform=Transform.UNPERMUTE, num_heads=5)),
            "do not make 5 rotated heads",
        ),
        (vector(Source("bad")), "'v' holds values that are not finite"),
    ],
)
def test_one_sentence_for_what_does_not_fit(checkpoint, spec, message):
    with pytest.raises(ModelLoadError, match=message):
        load_parameters(checkpoint, [spec])


@pytest.mark.parametrize(
    ("names", "option", "warns"),
    [("a", "int8", True), ("a", None, False), ("ab", "int4", False), ("b", "int8", False)],
)
def test_quantising_what_is_quantised_is_warned_of(tmp_path, caplog, names, option, warns):
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    rows = ARRAYS["v"]
    writer.add_tensor("a", gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.add_tensor("b", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "small.gguf")
    specs = [ParameterSpec(n, ParameterKind.LINEAR, (Source(n),)) for n in names]
    with caplog.at_level(logging.WARNING):
        load_parameters(checkpoint, specs, quantize=option)
    said = "quantize int8 changes nothing: the weights of small.gguf are quantised already (Q8_0)."
    assert [record.getMessage() for record in caplog.records] == ([said] if warns else [])


@pytest.fixture
def endless(checkpoint, tmp_path):
    """The checkpoint, with a weight file whose digest takes longer than any test may."""
    file = tmp_path / "endless.safetensors"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    longer = copy.copy(checkpoint)
    longer.files = (file,)
    return longer


@pytest.mark.parametrize("has_cache", [True, False])
def test_an_error_does_not_wait_for_the_digest(endless, tmp_path, monkeypatch, has_cache):
    monkeypatch.setattr("headrace.modeling.weights.load.has_room", lambda *_: True)
    cache = tmp_path / "cache" if has_cache else None
    with pytest.raises(ModelLoadError, match="lacks the tensor 'none'"):
        load_parameters(endless, [linear(Source("none"))], cache=cache)


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_file_that_cannot_be_read_is_a_load_error(checkpoint, tmp_path, has_cache):
    broken = copy.copy(checkpoint)
    broken.files = (tmp_path,)  # a directory opens as no file does
    cache = tmp_path / "cache" if has_cache else None
    with pytest.raises(ModelLoadError, match="cannot be read: Is a directory"):
        load_parameters(broken, [linear(Source("q"))], cache=cache)
    assert list(tmp_path.glob("cache/*")) == []


def test_weights_that_are_not_finite_cannot_be_quantised(checkpoint):
    with pytest.raises(ModelLoadError, match="'bad_matrix' holds scales"):
        load_parameters(checkpoint, [linear(Source("bad_matrix"))], quantize="int8")


def test_names_and_options(checkpoint):
    spec = linear(Source("q"))
    with pytest.raises(ModelLoadError, match="'w' is described twice"):
        load_parameters(checkpoint, [spec, spec])
    with pytest.raises(ConfigError, match="int8 or int4"):
        load_parameters(checkpoint, [spec], quantize="int2")
    optional = linear(Source("none"), is_optional=True)
    assert len(load_parameters(checkpoint, [optional])) == 0


def test_a_weight_is_its_matrix_dequantised(checkpoint):
    """Through the packed form and back: codes exact, scales within float16."""
    from headrace.modeling.quantization.quantize import quantize

    wanted = dequantize(quantize(ARRAYS["v"], "int8"))
    (part,) = load_one(checkpoint, linear(Source("v")), quantize="int8")
    np.testing.assert_array_equal(unpack(part.weight), wanted)
