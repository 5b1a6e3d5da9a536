"""A real model's file against the reference reader: header, tensors, and the packed result."""

import gguf
import numpy as np
import pytest

from headrace.kernels.packing import unpack
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.convert import Converter
from headrace.modeling.weights.sources import resolve


@pytest.fixture(scope="module")
def path():
    return resolve("smollm2-135m", progress=False)


@pytest.fixture(scope="module")
def reference(path):
    return gguf.GGUFReader(path)


@pytest.fixture(scope="module")
def checkpoint(path):
    return open_checkpoint(path)


def test_metadata_and_places_agree(checkpoint, reference):
    for key in checkpoint.metadata:
        value = checkpoint.metadata[key]
        wanted = reference.fields[key].contents()
        assert value == wanted or value == pytest.approx(wanted), key
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 49152
    template = checkpoint.metadata["tokenizer.chat_template"]
    assert template.startswith("{% for message in messages %}")
    found = {
        (info.name, info.type, info.offset, info.nbytes) for info in checkpoint.tensors.values()
    }
    assert found == {
        (tensor.name, tensor.tensor_type.name, int(tensor.data_offset), int(tensor.n_bytes))
        for tensor in reference.tensors
    }


def test_tensors_agree_bit_by_bit(checkpoint, reference):
    from headrace.modeling.quantization.dequantize import dequantize

    tensors = {tensor.name: tensor for tensor in reference.tensors}
    for name in ("blk.0.attn_q.weight", "blk.17.ffn_down.weight", "blk.29.attn_v.weight"):
        wanted = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        np.testing.assert_array_equal(dequantize(checkpoint.matrix(name)), wanted)
    table = tensors["token_embd.weight"]
    wanted = gguf.quants.dequantize(table.data[:500], table.tensor_type)
    np.testing.assert_array_equal(
        dequantize(checkpoint.matrix("token_embd.weight", (0, 500))), wanted
    )
    norm = tensors["blk.3.attn_norm.weight"].data
    np.testing.assert_array_equal(checkpoint.vector("blk.3.attn_norm.weight"), norm)


def test_packed_parameters_are_the_file(checkpoint):
    """Q4_1 and Q8_0 have float16 scales, so nothing may change at all."""
    from headrace.modeling.quantization.dequantize import dequantize

    _, specs = describe(checkpoint)
    wanted = {"layers.4.qkv", "layers.4.gate_up", "layers.4.down"}
    for name, parts in Converter(checkpoint).convert([s for s in specs if s.name in wanted]):
        weights = np.concatenate([unpack(part.weight) for part in parts])
        if name == "layers.4.gate_up":
            rows = [dequantize(checkpoint.matrix(f"blk.4.ffn_{n}.weight")) for n in ("gate", "up")]
            np.testing.assert_array_equal(weights, np.concatenate(rows))
        if name == "layers.4.down":
            np.testing.assert_array_equal(
                weights, dequantize(checkpoint.matrix("blk.4.ffn_down.weight"))
            )
        if name == "layers.4.qkv":
            value = dequantize(checkpoint.matrix("blk.4.attn_v.weight"))
            np.testing.assert_array_equal(weights[-len(value) :], value)
            query = dequantize(checkpoint.matrix("blk.4.attn_q.weight")).reshape(9, 32, 2, 576)
            np.testing.assert_array_equal(weights[:576], query.swapaxes(1, 2).reshape(576, 576))
