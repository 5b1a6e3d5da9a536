"""What an engine says of where its model came from, and what it is called."""

import gguf
import numpy as np
import pytest
from tests.support.fake_clock import FakeClock
from tests.support.tiny_models import make_tiny_llama

from headrace.config.engine import EngineConfig, ExecutorConfig, ModelConfig
from headrace.engine.build import build_engine, served_names


def info_of(model, **config):
    engine = EngineConfig(
        model=ModelConfig(model=str(model), cache_packed=False, max_context=32, **config),
        executor=ExecutorConfig(backend="reference"),
    )
    return build_engine(engine, FakeClock(), lambda phase: None).info


def write_gguf(path):
    """One layer of a Llama, all ones."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    square = [f"blk.0.{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "attn_output")]
    square += [f"blk.0.{name}.weight" for name in ("ffn_gate", "ffn_up", "ffn_down")]
    for name in (*square, "token_embd.weight"):
        writer.add_tensor(name, np.ones((32, 32), np.float32))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("part", ["", "small.gguf"])
def test_a_directory_with_a_gguf_file_is_that_file(tmp_path, part):
    write_gguf(tmp_path / "small.gguf")
    info = info_of(tmp_path / part)
    assert info.path == str(tmp_path / "small.gguf")
    assert info.names == ("small",)


def test_a_model_directory_is_itself(tmp_path):
    info = info_of(make_tiny_llama(tmp_path / "tiny"))
    assert (info.path, info.names) == (str(tmp_path / "tiny"), ("tiny",))


def test_names_are_what_the_operator_gives_or_the_short_name(tmp_path):
    assert served_names(ModelConfig(model="x", served_model_name=("a", "b")), tmp_path) == (
        "a",
        "b",
    )
    assert served_names(ModelConfig(model="smollm2-135m"), tmp_path) == ("smollm2-135m",)
