"""`/v1/embeddings`, `/v1/score` and `/v1/rerank` over a fake engine."""

import asyncio
import base64
import math
from array import array

import pytest
from msgspec import structs
from tests.support.fake_engine import EMBEDDING_SIZE
from tests.support.in_process import InProcess

from headrace.core.events import FinishReason
from headrace.core.model_info import Task
from headrace.core.pooling import PoolKind


@pytest.fixture
async def app(tmp_path):
    async with InProcess(tmp_path) as made:
        yield made


async def post(app, path, status=200, /, **body):
    answer = await app.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def counted(ids):
    """What the fake engine makes of these ids."""
    vector = [0.25] * EMBEDDING_SIZE
    for token_id in ids:
        vector[token_id % EMBEDDING_SIZE] += 1
    length = math.hypot(*vector)
    return [number / length for number in vector]


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("abc", [b"abc"]),
        (["abc", "d"], [b"abc", b"d"]),
        ([97, 98, 99], [b"abc"]),
        ([[97, 98], [99]], [b"ab", b"c"]),
        (["ab", [99]], [b"ab", b"c"]),
    ],
)
async def test_every_form_of_input(app, given, texts):
    got = await post(app, "/v1/embeddings", input=given, add_special_tokens=False)
    assert got["object"] == "list"
    assert got["model"] == "fake"
    assert [item["index"] for item in got["data"]] == list(range(len(texts)))
    for item, text in zip(got["data"], texts, strict=True):
        assert item["object"] == "embedding"
        assert item["embedding"] == pytest.approx(counted(text), rel=1e-6)
    count = sum(map(len, texts))
    assert got["usage"] == {"prompt_tokens": count, "total_tokens": count}


async def test_base64_has_the_same_numbers_as_float(app):
    plain = await post(app, "/v1/embeddings", input="hello", encoding_format="float")
    packed = await post(app, "/v1/embeddings", input="hello", encoding_format="base64")
    numbers = array("f")
    numbers.frombytes(base64.b64decode(packed["data"][0]["embedding"]))
    assert array("f", plain["data"][0]["embedding"]) == numbers


async def test_fewer_dimensions_have_the_length_one_again(app):
    whole = (await post(app, "/v1/embeddings", input="hello"))["data"][0]["embedding"]
    cut = (await post(app, "/v1/embeddings", input="hello", dimensions=3))["data"][0]["embedding"]
    length = math.hypot(*whole[:3])
    assert cut == pytest.approx([number / length for number in whole[:3]], rel=1e-5)


async def test_vectors_may_keep_their_length(app):
    got = await post(app, "/v1/embeddings", input=[97], normalize=False)
    assert got["data"][0]["embedding"] == [1.25 if i == 97 % 8 else 0.25 for i in range(8)]


async def test_the_first_tokens_may_be_kept(app):
    ids = [97 + i % 20 for i in range(100)]
    got = await post(app, "/v1/embeddings", input=ids, truncate_prompt_tokens=5)
    assert got["usage"]["prompt_tokens"] == 5
    assert got["data"][0]["embedding"] == pytest.approx(counted(ids[:5]), rel=1e-6)
    got = await post(app, "/v1/embeddings", input="x" * 100_000, truncate_prompt_tokens=-1)
    assert got["usage"]["prompt_tokens"] == 64


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [5, [6]]}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [9999]}, "input[0]"),
        ({"input": [[1], [9999]]}, "input[1][0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "x" * 100}, "input"),
        ({"input": "x" * 1_000_000}, "input"),
        ({"input": [5] * 65}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 9}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "model": "other"}, None),
    ],
)
async def test_a_wrong_request_names_its_field(app, body, param):
    answer = await app.http.post("/v1/embeddings", json=body)
    assert answer.status_code == (404 if "model" in body else 400), answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error


async def test_scores_are_cosines(app):
    got = await post(app, "/v1/score", text_1="abc", text_2=["abc", "xyz"])
    scores = [item["score"] for item in got["data"]]
    assert scores[0] == pytest.approx(1.0, abs=1e-6)
    assert scores[1] < 0.9
    assert got["object"] == "list"
    assert got["id"].startswith("score-")
    # Each different text runs once.
    alone = await post(app, "/v1/embeddings", input=["abc", "xyz"])
    assert got["usage"] == alone["usage"]
    a, b = (item["embedding"] for item in alone["data"])
    assert scores[1] == pytest.approx(sum(x * y for x, y in zip(a, b, strict=True)), abs=1e-6)


async def test_pairs_are_n_with_n_or_one_with_each(app):
    first = await post(app, "/score", text_1=["a", "b"], text_2=["b", "a"])
    both = await post(app, "/v1/score", text_1=["a", "b"], text_2="b")
    assert [i["score"] for i in both["data"]] == pytest.approx(
        [first["data"][0]["score"], 1.0], abs=1e-6
    )
    wrong = await post(app, "/v1/score", 400, text_1=["a", "b"], text_2=["a", "b", "c"])
    assert wrong["error"]["param"] == "text_2"
    wrong = await post(app, "/v1/score", 400, text_1=["a", "b"], text_2=["a", ""])
    assert wrong["error"]["param"] == "text_2[1]"


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents_come_best_first(app, path):
    documents = ["~~~", {"text": "abc"}, "abz"]
    got = await post(app, path, query="abc", documents=documents)
    assert [result["index"] for result in got["results"]] == [1, 2, 0]
    assert got["results"][0]["document"] == {"text": "abc"}
    scores = [result["relevance_score"] for result in got["results"]]
    assert scores == sorted(scores, reverse=True)
    short = await post(app, path, query="abc", documents=documents, top_n=2, return_documents=False)
    assert [set(result) for result in short["results"]] == [{"index", "relevance_score"}] * 2


async def test_equal_documents_keep_their_order(app):
    got = await post(app, "/v1/rerank", query="q", documents=["same"] * 5)
    assert [result["index"] for result in got["results"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "q"}, "documents"),
        ({"documents": ["a"]}, "query"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a", ""]}, "documents[1]"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": [{"texte": "a"}]}, "documents[0].text"),
    ],
)
async def test_a_wrong_rerank_names_its_field(app, body, param):
    answer = await app.http.post("/v1/rerank", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def become(app, *tasks):
    """The same engine as another kind of model."""
    model = app.replica.models["fake"]
    info = structs.replace(model.client.info, tasks=tasks, pooling=PoolKind.MEAN)
    model.client.info = model.preparer.info = info


@pytest.mark.parametrize(
    ("tasks", "named"),
    [((Task.EMBED,), "/v1/embeddings"), ((Task.SCORE, Task.EMBED), "/v1/rerank")],
)
async def test_an_encoder_makes_no_text_and_says_what_it_makes(app, tasks, named):
    become(app, *tasks)
    hello = [{"role": "user", "content": "Hello"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": hello}),
        ("/v1/completions", {"prompt": "Hello"}),
    ):
        error = (await post(app, path, 400, **body))["error"]
        assert named in error["message"]
        assert error["code"] == "unsupported_task"
    await post(app, "/v1/embeddings", input="Hello")
    card = (await app.http.get("/v1/models")).json()["data"][0]
    assert card["capabilities"] == [task.value for task in tasks]


async def test_an_engine_that_is_gone_is_no_empty_answer(app):
    app.engine.is_held = True
    waiting = asyncio.create_task(app.http.post("/v1/embeddings", json={"input": "a"}))
    while not app.engine.num_open:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0)
    app.engine.finish_open(FinishReason.SHUTDOWN)
    answer = await waiting
    assert answer.status_code == 503
    assert app.replica.admission.num_open == 0
