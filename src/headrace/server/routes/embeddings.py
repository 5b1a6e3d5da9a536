"""`POST /v1/embeddings`, `/v1/score` and `/v1/rerank`."""

from base64 import b64encode
from functools import partial

from headrace.api.embeddings import (
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    RerankDocument,
    Reranked,
    RerankRequest,
    RerankResult,
    Score,
    ScoreList,
    ScoreRequest,
)
from headrace.core.errors import BadRequestError
from headrace.core.request import Request
from headrace.preprocess.prepare import Arrival, Preparer
from headrace.preprocess.texts import ComparedTexts, Pair, compared, embedding_requests
from headrace.server.calls import Call, preparer_of
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.server.vectors import (
    TextPlan,
    Vectors,
    answering_texts,
    floats,
    scores_of,
    usage_of,
)
from headrace.web.asgi import App


def embed(replica: Replica) -> App:
    """Vectors of texts."""
    return answering_texts(replica, _prepare_embeddings)


def score(replica: Replica) -> App:
    """Scores of pairs."""
    return answering_texts(replica, _prepare_scores)


def rerank(replica: Replica) -> App:
    """Documents, the best first."""
    return answering_texts(replica, _prepare_rerank)


async def _prepare_embeddings(call: Call) -> tuple[ServedModel, TextPlan]:
    wire = call.decode(EmbeddingRequest)
    model, preparer, arrival = await _find(call, wire.model, "embd")
    requests = await call.replica.workers.run(
        len(call.body), embedding_requests, preparer, wire, arrival
    )
    name = wire.model or preparer.info.names[0]
    answer = partial(_embeddings, wire.encoding_format == "base64", name, requests)
    return model, TextPlan(requests=requests, answer=answer)


async def _prepare_scores(call: Call) -> tuple[ServedModel, TextPlan]:
    wire = call.decode(ScoreRequest)
    model, preparer, arrival = await _find(call, wire.model, "score")
    pairs = _pairs(wire)
    texts = await _compare(call, preparer, pairs, wire, arrival)
    name = wire.model or preparer.info.names[0]
    created = int(call.replica.clock.wall())
    answer = partial(_scores, arrival.request_id, created, name, texts)
    return model, TextPlan(requests=texts.requests, answer=answer)


async def _prepare_rerank(call: Call) -> tuple[ServedModel, TextPlan]:
    wire = call.decode(RerankRequest)
    model, preparer, arrival = await _find(call, wire.model, "rerank")
    pairs = [
        Pair(wire.query, text, ("query", f"documents[{place}]"))
        for place, text in enumerate(wire.texts())
    ]
    texts = await _compare(call, preparer, pairs, wire, arrival)
    name = wire.model or preparer.info.names[0]
    answer = partial(_reranked, arrival.request_id, wire, name, texts)
    return model, TextPlan(requests=texts.requests, answer=answer)


async def _compare(
    call: Call,
    preparer: Preparer,
    pairs: list[Pair],
    wire: ScoreRequest | RerankRequest,
    arrival: Arrival,
) -> ComparedTexts:
    return await call.replica.workers.run(
        len(call.body),
        compared,
        preparer,
        pairs,
        wire,
        arrival,
        activates=wire.use_activation is not False,
    )


async def _find(call: Call, name: str | None, prefix: str) -> tuple[ServedModel, Preparer, Arrival]:
    model = await call.model(name)
    return model, preparer_of(model), call.arrival(prefix)


def _pairs(wire: ScoreRequest) -> list[Pair]:
    """N with N, or one with each of the others."""
    first = [wire.text_1] if isinstance(wire.text_1, str) else wire.text_1
    second = [wire.text_2] if isinstance(wire.text_2, str) else wire.text_2
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise BadRequestError(
            f"'text_2' must have one text or as many as 'text_1', {len(first)}, not {len(second)}.",
            param="text_2",
        )
    count = max(len(first), len(second))

    def name(field: str, given: str | list[str], place: int) -> str:
        return field if isinstance(given, str) else f"{field}[{place}]"

    pairs = []
    for place in range(count):
        i, j = place % len(first), place % len(second)
        names = (name("text_1", wire.text_1, i), name("text_2", wire.text_2, j))
        pairs.append(Pair(first[i], second[j], names))
    return pairs


def _embeddings(
    is_base64: bool, model: str, requests: tuple[Request, ...], vectors: Vectors
) -> EmbeddingList:
    data = [
        Embedding(
            index=index, embedding=b64encode(vector).decode() if is_base64 else floats(vector)
        )
        for index, vector in enumerate(vectors)
    ]
    return EmbeddingList(data=data, model=model, usage=usage_of(requests))


def _scores(
    name: str, created: int, model: str, texts: ComparedTexts, vectors: Vectors
) -> ScoreList:
    scores = scores_of(texts, vectors)
    return ScoreList(
        id=name,
        created=created,
        model=model,
        data=[Score(index=index, score=score) for index, score in enumerate(scores)],
        usage=usage_of(texts.requests),
    )


def _reranked(
    name: str, wire: RerankRequest, model: str, texts: ComparedTexts, vectors: Vectors
) -> Reranked:
    scores = scores_of(texts, vectors)
    # Of equal scores, the earlier document is the better one.
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    documents = wire.texts()
    results = [
        RerankResult(index=index, relevance_score=scores[index])
        if wire.return_documents is False
        else RerankResult(
            index=index,
            relevance_score=scores[index],
            document=RerankDocument(text=documents[index]),
        )
        for index in order[: wire.top_n]
    ]
    return Reranked(id=name, model=model, results=results, usage=usage_of(texts.requests))
