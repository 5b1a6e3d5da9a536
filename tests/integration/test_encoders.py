"""Encoders give the states and scores of transformers, alone and in company, from files of both kinds."""

import numpy as np
import pytest
from tests.support.encoders import (
    random_texts,
    save_encoder,
    scores_of,
    states_of,
    write_encoder_gguf,
)
from tests.support.hf_families import CASES, random_sequences, save_model

from headrace.core.errors import KernelError, ModelLoadError, UnsupportedModelError
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.core.step import PlanText
from headrace.engine.executor.pooler import Pooler
from headrace.kernels.dispatch import create_backend
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters

LENGTHS = (17, 1, 40, 96, 5)
TOLERANCE = 1e-5


def pooler_of(path, backend="cpu", *, quantize=None, threads=2):
    checkpoint = open_checkpoint(path)
    spec, parameters = describe(checkpoint)
    weights = load_parameters(checkpoint, parameters, quantize=quantize)
    made = create_backend(backend, threads=threads)
    return Pooler(spec, weights, made, max_tokens=256, max_texts=8)


def vectors(pooler, texts, kind=PoolKind.MEAN, **params):
    rows = [PlanText(ids.tolist(), PoolingParams(kind, **params)) for ids in texts]
    results = pooler.run(rows)
    assert all(result.error is None for result in results)
    return [np.frombuffer(result.vector, "<f4") for result in results]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    return save_encoder(path), path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    path = tmp_path_factory.mktemp("classifier")
    return save_encoder(path, "BertForSequenceClassification", num_labels=1), path


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_states_are_those_of_transformers(bert, backend):
    model, path = bert
    texts = random_texts(LENGTHS)
    expected = [states_of(model, ids) for ids in texts]
    pooler = pooler_of(path, backend)
    for kind, pool in (
        (PoolKind.MEAN, lambda states: states.mean(axis=0)),
        (PoolKind.CLS, lambda states: states[0]),
        (PoolKind.LAST, lambda states: states[-1]),
    ):
        for vector, states in zip(
            vectors(pooler, texts, kind, normalize=False), expected, strict=True
        ):
            np.testing.assert_allclose(vector, pool(states), atol=TOLERANCE, rtol=TOLERANCE)


def test_vectors_are_cut_then_normalised(bert):
    model, path = bert
    texts = random_texts((9, 30))
    for vector, ids in zip(
        vectors(pooler_of(path), texts, dimensions=20), random_texts((9, 30)), strict=True
    ):
        mean = states_of(model, ids).mean(axis=0)[:20]
        assert vector.shape == (20,)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=TOLERANCE)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_scores_of_pairs_are_those_of_transformers(classifier, backend):
    model, path = classifier
    pooler = pooler_of(path, backend)
    texts = random_texts((12, 40, 7))
    seconds = (4, 20, 3)
    rows = [
        PlanText(ids.tolist(), PoolingParams(PoolKind.SCORES, normalize, 0, second))
        for normalize in (False, True)
        for ids, second in zip(texts, seconds, strict=True)
    ]
    got = [float(np.frombuffer(result.vector, "<f4")[0]) for result in pooler.run(rows)]
    expected = [
        float(scores_of(model, ids, second)[0]) for ids, second in zip(texts, seconds, strict=True)
    ]
    np.testing.assert_allclose(got[:3], expected, atol=TOLERANCE)
    np.testing.assert_allclose(got[3:], 1 / (1 + np.exp(-np.array(expected))), atol=TOLERANCE)


def test_several_labels_come_as_probabilities(tmp_path):
    model = save_encoder(tmp_path, "BertForSequenceClassification", num_labels=3)
    (ids,) = random_texts((12,))
    row = PlanText(ids.tolist(), PoolingParams(PoolKind.SCORES, second_start=5))
    got = np.frombuffer(pooler_of(tmp_path).run([row])[0].vector, "<f4")
    logits = scores_of(model, ids, 5).astype(np.float64)
    np.testing.assert_allclose(got, np.exp(logits) / np.exp(logits).sum(), atol=TOLERANCE)


def test_token_types_matter(bert):
    model, path = bert
    (ids,) = random_texts((20,))
    pooler = pooler_of(path)
    (pair,) = vectors(pooler, [ids], normalize=False, second_start=8)
    (one,) = vectors(pooler, [ids], normalize=False)
    np.testing.assert_allclose(pair, states_of(model, ids, 8).mean(axis=0), atol=TOLERANCE)
    assert np.abs(pair - one).max() > 100 * TOLERANCE


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_a_vector_is_the_same_to_the_bit_in_any_company(bert, quantize):
    _, path = bert
    texts = random_texts((33, 2, 96, 50, 17))
    together = vectors(pooler_of(path, quantize=quantize), texts)
    alone = pooler_of(path, quantize=quantize, threads=1)
    for order in (range(5), (4, 2, 0)):
        for index in order:
            (vector,) = vectors(alone, [texts[index]])
            np.testing.assert_array_equal(vector, together[index])
    turned = vectors(pooler_of(path, quantize=quantize), texts[::-1])
    for vector, other in zip(turned[::-1], together, strict=True):
        np.testing.assert_array_equal(vector, other)


@pytest.mark.parametrize(("quantize", "least"), [("int8", 0.999), ("int4", 0.96)])
def test_quantised_weights_point_the_same_way(bert, quantize, least):
    _, path = bert
    texts = random_texts(LENGTHS)
    exact = vectors(pooler_of(path), texts)
    coarse = vectors(pooler_of(path, quantize=quantize), texts)
    assert min(float(a @ b) for a, b in zip(exact, coarse, strict=True)) > least


@pytest.mark.parametrize("kind", ["bert", "classifier"])
def test_a_gguf_file_gives_the_same(kind, request, tmp_path):
    model, path = request.getfixturevalue(kind)
    file = write_encoder_gguf(tmp_path / "model.gguf", model)
    texts = random_texts(LENGTHS)
    for a, b in zip(vectors(pooler_of(path), texts), vectors(pooler_of(file), texts), strict=True):
        np.testing.assert_array_equal(a, b)
    if kind == "classifier":
        row = PlanText(texts[0].tolist(), PoolingParams(PoolKind.SCORES, second_start=3))
        assert pooler_of(file).run([row]) == pooler_of(path).run([row])


def test_a_shorter_context_keeps_the_second_table(bert):
    """Positions of token type 1 begin behind all positions of the checkpoint."""
    _, path = bert
    checkpoint = open_checkpoint(path)
    spec, parameters = describe(checkpoint)
    weights = load_parameters(checkpoint, parameters)
    (ids,) = random_texts((20,))
    row = PlanText(ids.tolist(), PoolingParams(PoolKind.CLS, second_start=9))
    results = [
        Pooler(
            spec.with_max_context(context), weights, create_backend(), max_tokens=64, max_texts=1
        ).run([row])
        for context in (32, 96)
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2-upper-windows"])
@pytest.mark.parametrize("kind", [PoolKind.MEAN, PoolKind.LAST])
def test_decoders_pool_their_last_states(name, kind, tmp_path):
    import torch

    case = next(case for case in CASES if case.name == name)
    model = save_model(case, tmp_path)
    texts = random_sequences((27, 3, 60))
    for vector, ids in zip(
        vectors(pooler_of(tmp_path), texts, kind, normalize=False), texts, strict=True
    ):
        with torch.no_grad():
            out = model.model(torch.from_numpy(ids.astype(np.int64))[None])
        states = out.last_hidden_state[0].numpy()
        expected = states.mean(axis=0) if kind is PoolKind.MEAN else states[-1]
        np.testing.assert_allclose(vector, expected, atol=3e-5, rtol=3e-5)


def test_what_cannot_be_run_is_refused(bert):
    _, path = bert
    pooler = pooler_of(path)
    with pytest.raises(KernelError, match="classification head"):
        pooler.run([PlanText([1, 2], PoolingParams(PoolKind.SCORES))])
    with pytest.raises(KernelError, match="positions"):
        pooler.run([PlanText([1] * 200, PoolingParams(PoolKind.MEAN, second_start=50))])
    with pytest.raises(KernelError, match="tokens"):
        pooler.run([PlanText([1] * 90, PoolingParams(PoolKind.MEAN))] * 3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"position_embedding_type": "relative_key"}, "positions of the kind"),
        ({"is_decoder": True}, "a decoder"),
        ({"hidden_act": "quick_gelu"}, "activation"),
        ({"max_position_embeddings": 4096}, "positions, but the context"),
        ({"type_vocab_size": 3}, "token_type_embeddings"),
        ({"num_attention_heads": 5}, "multiple of"),
        ({"layer_norm_eps": -1}, "layer_norm_eps"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(bert, tmp_path, change, sentence):
    import json
    import shutil

    _, path = bert
    shutil.copytree(path, tmp_path / "copy")
    config = json.loads((tmp_path / "copy/config.json").read_text())
    (tmp_path / "copy/config.json").write_text(json.dumps(config | change))
    with pytest.raises((ModelLoadError, UnsupportedModelError), match=sentence):
        describe(open_checkpoint(tmp_path / "copy"))
