"""Adapters that cannot be served are refused in a sentence; nothing of one is ever left out."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.support.lora_files import tiny_sides, write_adapter
from tests.support.tiny_models import make_tiny_llama

from headrace.core.errors import ModelLoadError
from headrace.modeling.adapters import peft
from headrace.modeling.adapters.files import CONFIG, WEIGHTS
from headrace.modeling.adapters.peft import read_adapter
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint

A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B = A.replace("lora_A", "lora_B")


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return describe(open_checkpoint(make_tiny_llama(tmp_path_factory.mktemp("base"))))[0]


@pytest.fixture
def adapter(tmp_path):
    return write_adapter(tmp_path / "one", tiny_sides(), rank=4, alpha=8)


def configure(adapter, **changes):
    path = adapter / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(adapter, change):
    tensors = load_file(adapter / WEIGHTS)
    change(tensors)
    save_file(tensors, adapter / WEIGHTS)


def refused(adapter, spec, words, max_rank=64):
    with pytest.raises(ModelLoadError, match=words) as caught:
        read_adapter(adapter, spec, max_rank=max_rank)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_what_is_right_is_read(adapter, spec):
    read = read_adapter(adapter, spec, max_rank=4)
    assert set(read.entries) == {f"layers.{i}.{place}" for i in (0, 1) for place in ("q", "down")}
    down, up = tiny_sides()["model.layers.0.self_attn.q_proj"]
    assert np.array_equal(read.entries["layers.0.q"].down, down)
    assert np.array_equal(read.entries["layers.0.q"].up, up * np.float32(2))
    assert read.rank == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, "use_dora 'True' is not supported"),
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save .*lm_head"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"fan_in_fan_out": 1}, "fan_in_fan_out '1'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"r": 0}, "'r'|r must"),
        ({"r": "4"}, "'r'|r must"),
        ({"r": 8}, "A .4, 128. and B .64, 4., but the model and the config ask for .8, 128."),
        ({"lora_alpha": "8"}, "lora_alpha must be a number"),
        ({"lora_alpha": True}, "lora_alpha must be a number"),
        ({"rank_pattern": {"q_proj": 2}}, "A .4, 64. .* ask for .2, 64."),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern gives a rank below 1"),
        ({"rank_pattern": {"(a+)+$": 2}}, "pattern .* is not supported"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern must be a number"),
        ({"lora_alpha": 1e39}, "times its scale .* is not finite"),
    ],
)
def test_a_config_that_asks_for_more(adapter, spec, changes, words):
    configure(adapter, **changes)
    refused(adapter, spec, words)


def test_a_config_that_is_none(adapter, spec):
    (adapter / CONFIG).write_text("{")
    refused(adapter, spec, "is not valid JSON")
    (adapter / CONFIG).write_text("[]")
    refused(adapter, spec, "does not hold a JSON object")
    (adapter / CONFIG).write_text(json.dumps({"peft_type": "LORA", "lora_alpha": math.nan}))
    refused(adapter, spec, "lora_alpha must be a number")
    (adapter / CONFIG).unlink()
    refused(adapter, spec, "is no LoRA adapter: it needs")


def test_a_rank_that_is_too_large(adapter, spec):
    refused(adapter, spec, "has rank 4, but --max-lora-rank is 3", max_rank=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(B), "q_proj lacks lora_A or lora_B"),
        (lambda t: t.pop(A), "q_proj lacks lora_A or lora_B"),
        (lambda t: t.update({A: t[A][:, :-1].copy()}), "has A .4, 63."),
        (lambda t: t.update({B: t[B].T.copy()}), "B .4, 64."),
        (lambda t: t.update({A: t[A].reshape(-1)}), "has A .256."),
        (lambda t: t.update({A: t[A].astype(np.float64)}), "is not a matrix of f32, f16 or bf16"),
        (lambda t: t.update({A: t[A].astype(np.int8)}), "is not a matrix of f32, f16 or bf16"),
        (lambda t: t.update({A: t[A] * np.float32(np.nan)}), "numbers that are not finite"),
        (lambda t: t.update({B: t[B] + np.float32(np.inf)}), "numbers that are not finite"),
        (
            lambda t: t.update({"base_model.model.lm_head.weight": t[A]}),
            "'.*lm_head.weight' is not",
        ),
        (
            lambda t: t.update({A.replace("lora_A.weight", "lora_magnitude_vector"): t[A]}),
            "magnitude_vector' is not supported",
        ),
        (
            lambda t: t.update({n.replace("q_proj", "rotary"): t[n] for n in (A, B)}),
            "rotary' is not supported; projections are",
        ),
        (
            lambda t: t.update({n.replace("layers.0", "layers.7"): t[n] for n in (A, B)}),
            "The model has 2 layers, but there is .*layers.7",
        ),
        (
            lambda t: t.update({n.replace("base_model.model.", ""): t[n] for n in (A, B)}),
            "two tensors are .* spelt differently",
        ),
        (lambda t: t.clear(), "changes nothing"),
    ],
)
def test_tensors_that_do_not_fit(adapter, spec, change, words):
    change_tensors(adapter, change)
    refused(adapter, spec, words)


def test_a_file_that_is_damaged(adapter, spec):
    content = (adapter / WEIGHTS).read_bytes()
    for damaged, words in (
        (content[:-1], "cut off or damaged"),
        (content[:4], "not a complete safetensors"),
        (b"", "not a complete safetensors"),
        (b"\xff" * 64, "not a complete safetensors"),
    ):
        (adapter / WEIGHTS).write_bytes(damaged)
        refused(adapter, spec, words)


def test_a_file_that_is_larger_than_any_adapter(adapter, spec, monkeypatch):
    monkeypatch.setattr(peft, "MAX_HEADER_BYTES", 100)
    with (adapter / WEIGHTS).open("ab") as file:
        file.truncate(1 << 22)
    refused(adapter, spec, "has more than the .* bytes", max_rank=4)


def test_names_do_not_change_what_an_adapter_is(adapter, spec, tmp_path):
    other = write_adapter(tmp_path / "other", tiny_sides(), rank=4, alpha=8, use_rslora=False)
    different = write_adapter(tmp_path / "different", tiny_sides(), rank=4, alpha=4)
    digests = [read_adapter(path, spec, max_rank=8).digest for path in (adapter, other, different)]
    assert digests[0] == digests[1] != digests[2]
