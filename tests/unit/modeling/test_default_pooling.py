"""How a model's files say that its states are pooled."""

import json
from types import SimpleNamespace

import pytest

from headrace.core.errors import ModelLoadError
from headrace.core.pooling import PoolKind
from headrace.modeling.pooling import default_pooling

ENCODER = SimpleNamespace(encoder=object())
DECODER = SimpleNamespace(encoder=None)


def directory(path, **modes):
    if modes:
        (path / "1_Pooling").mkdir()
        modes |= {"word_embedding_dimension": 384, "include_prompt": True}
        (path / "1_Pooling/config.json").write_text(json.dumps(modes))
    return SimpleNamespace(kind="safetensors", path=path)


def gguf(path, **metadata):
    return SimpleNamespace(
        kind="gguf", path=path, metadata={"general.architecture": "bert", **metadata}
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pooling_mode_mean_tokens", PoolKind.MEAN),
        ("pooling_mode_cls_token", PoolKind.CLS),
        ("pooling_mode_lasttoken", PoolKind.LAST),
    ],
)
def test_sentence_transformers_say_it(tmp_path, name, kind):
    modes = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False, name: True}
    assert default_pooling(directory(tmp_path, **modes), ENCODER) is kind


@pytest.mark.parametrize(
    "modes",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
    ],
)
def test_what_we_do_not_have_is_refused_with_the_way_out(tmp_path, modes):
    with pytest.raises(ModelLoadError, match="--pooling"):
        default_pooling(directory(tmp_path, **modes), ENCODER)


def test_gguf_says_it_as_a_number(tmp_path):
    for number, kind in ((1, PoolKind.MEAN), (2, PoolKind.CLS), (3, PoolKind.LAST)):
        found = default_pooling(gguf(tmp_path, **{"bert.pooling_type": number}), ENCODER)
        assert found is kind


def test_without_a_word_it_is_the_mean_or_the_last_token(tmp_path):
    for checkpoint in (
        directory(tmp_path),
        gguf(tmp_path),
        gguf(tmp_path, **{"bert.pooling_type": 0}),
    ):
        assert default_pooling(checkpoint, ENCODER) is PoolKind.MEAN
        assert default_pooling(checkpoint, DECODER) is PoolKind.LAST
