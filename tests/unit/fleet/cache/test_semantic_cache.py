import json
from typing import Any

import pytest
from tests.support.answer_stores import DictStore, admitted
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.cache import CacheConfig, SemanticConfig, SemanticMode
from headrace.fleet.cache.answers import Answer
from headrace.fleet.cache.front import ResponseCache, Result
from headrace.fleet.cache.semantic.agreement import agree, overlap
from headrace.fleet.cache.semantic.cache import SemanticCache
from headrace.fleet.cache.semantic.embeddings import EmbeddingError
from headrace.fleet.cache.semantic.index import Vector, vector_of
from headrace.fleet.cache.serving import Outcome, serve
from headrace.observe import cache_metrics as names
from headrace.observe.metrics import Metrics
from headrace.web.asgi import Message, Send, send_body

CHAT = "/v1/chat/completions"


class AllAlike:
    """The worst of models: every text has nearly the same vector."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_broken = False
        self.is_closed = False

    async def vector(self, text: str) -> Vector:
        self.asked += 1
        if self.is_broken:
            raise EmbeddingError("broken")
        found = vector_of([1.0, 1.0, 1.0, len(text) / 1000])
        assert found is not None
        return found

    def close(self) -> None:
        self.is_closed = True


class Gateway:
    def __init__(self, mode: SemanticMode = SemanticMode.ON, **semantic: Any) -> None:
        self.metrics, self.store, self.embedder = Metrics(), DictStore(), AllAlike()
        clock = FakeClock()
        config = CacheConfig(enabled=True, semantic=SemanticConfig(mode=mode, **semantic))
        self.cache = ResponseCache(config, self.store, clock, self.metrics)
        self.semantic = SemanticCache(
            config.semantic, self.embedder, self.cache.find, clock, self.metrics
        )
        self.cache.attach(self.semantic)
        self.headers: dict[str, str] = {}
        self.made = 0

    async def ask(self, text: Any, says: str = "Paris.", tenant: str = "t", **body: Any) -> Outcome:
        content = {"messages": [{"role": "user", "content": text}], "temperature": 0, **body}
        before = content.pop("before", [])
        content["messages"] = [*before, *content["messages"]]

        async def make(send: Send) -> None:
            self.made += 1
            message = {"role": "assistant", "content": says}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await send_body(
                send, json.dumps({"choices": [choice], "usage": {"total_tokens": 2}}).encode()
            )

        async def hear(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.headers = {k.decode(): v.decode() for k, v in message["headers"]}

        inquiry = self.cache.ask(path=CHAT, body=content, tenant=tenant, model="m")
        outcome = await serve(self.cache, inquiry, hear, make, admitted)
        await self.cache.settle()
        return outcome

    def counted(self, metric: names.Metric, *labels: str) -> float:
        return self.metrics.value(metric, labels)


FRANCE = "What is the capital of France?"


async def test_the_same_question_in_other_words_is_a_hit() -> None:
    gateway = Gateway()
    assert (await gateway.ask(FRANCE)).result is Result.MISS
    outcome = await gateway.ask("Hi, could you please tell me what the capital of France is?")
    assert outcome == Outcome(Result.SEMANTIC, {"total_tokens": 2})
    assert gateway.headers["x-headrace-cache"] == "hit"
    assert 0.92 <= float(gateway.headers["x-headrace-cache-similarity"]) <= 1.0
    assert gateway.made == 1
    assert gateway.counted(names.SEMANTIC_LOOKUPS, "hit") == 1
    assert gateway.counted(names.CACHE_REQUESTS, "m", "semantic") == 1


@pytest.mark.parametrize(
    "other",
    [
        "What is the capital of Spain?",
        "What is not the capital of France?",
        "Is France the capital?",
    ],
)
async def test_guards_keep_others_apart_however_alike_their_vectors_are(other: str) -> None:
    gateway = Gateway()
    await gateway.ask(FRANCE)
    assert (await gateway.ask(other)).result is Result.MISS
    assert gateway.counted(names.SEMANTIC_LOOKUPS, "guarded") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"},
        {"max_tokens": 5},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"before": [{"role": "system", "content": "Answer in French."}]},
        {"before": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    ],
)
async def test_everything_else_must_be_equal(change: dict[str, Any]) -> None:
    gateway = Gateway()
    await gateway.ask(FRANCE)
    assert (await gateway.ask("what's the capital of France", **change)).result is Result.MISS


@pytest.mark.parametrize(
    "text", ["", " ", "x" * 3000, [{"type": "image_url", "image_url": {"url": "https://x"}}], None]
)
async def test_what_is_not_looked_for_by_meaning(text: Any) -> None:
    gateway = Gateway()
    await gateway.ask(text)
    assert gateway.embedder.asked == 0


async def test_one_part_of_text_is_text() -> None:
    gateway = Gateway()
    await gateway.ask(FRANCE)
    outcome = await gateway.ask([{"type": "text", "text": "what's the capital of France"}])
    assert outcome.result is Result.SEMANTIC


async def test_a_question_is_embedded_once() -> None:
    gateway = Gateway()
    await gateway.ask(FRANCE)
    assert gateway.embedder.asked == 1


async def test_no_vector_is_a_miss() -> None:
    gateway = Gateway()
    gateway.embedder.is_broken = True
    for _ in range(2):
        assert (await gateway.ask(FRANCE)).result in (Result.MISS, Result.HIT)
    assert len(gateway.semantic.index) == 0
    assert gateway.counted(names.SEMANTIC_LOOKUPS, "failed") == 2


@pytest.mark.parametrize("mode", [SemanticMode.ON, SemanticMode.SHADOW])
async def test_nothing_is_forgotten_while_the_store_is_away(mode: SemanticMode) -> None:
    gateway = Gateway(mode, shadow_share=1.0)
    await gateway.ask(FRANCE)
    gateway.store.is_away = True
    assert (await gateway.ask("What's the capital of France")).result is Result.MISS
    assert len(gateway.semantic.index) == 2
    gateway.store.is_away = False
    gateway.store.values.clear()
    assert (await gateway.ask("Tell me what the capital of France is")).result is Result.MISS
    assert len(gateway.semantic.index) == 2


async def test_an_answer_that_is_gone_is_forgotten() -> None:
    gateway = Gateway()
    await gateway.ask(FRANCE)
    await gateway.store.forget()
    assert (await gateway.ask("what's the capital of France")).result is Result.MISS
    assert len(gateway.semantic.index) == 1


async def test_shadow_mode_tells_nothing_and_measures() -> None:
    gateway = Gateway(SemanticMode.SHADOW)
    await gateway.ask(FRANCE)
    asked = gateway.embedder.asked
    assert (await gateway.ask("what's the capital of France")).result is Result.MISS
    assert gateway.embedder.asked == asked + 1
    assert gateway.counted(names.SEMANTIC_SHADOW, "m", "right") == 1
    await gateway.ask("What is the capital of France, please?", says="It is Lyon, I think.")
    assert gateway.counted(names.SEMANTIC_SHADOW, "m", "wrong") == 1
    assert gateway.metrics.histogram(names.SEMANTIC_SIMILARITY, ("m", "wrong")).count == 1
    assert gateway.made == 3


async def test_closing_closes_all() -> None:
    gateway = Gateway()
    await gateway.cache.close()
    assert gateway.embedder.is_closed


def said(text: str | None, calls: list[Any] | None = None) -> Answer:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer(path=CHAT, stored_at=0.0, whole={"choices": [choice]}, usage={})


def called(arguments: str) -> list[Any]:
    return [{"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (said("The capital is Paris."), said("the capital is paris"), True),
        (said("The capital is Paris."), said("No idea at all"), False),
        (said("It has 3 legs"), said("It has 4 legs"), False),
        (said("It has 3 legs"), said("It has three legs"), False),
        (said(""), said(""), True),
        (said(None, called('{"a":1,"b":2}')), said(None, called('{"b": 2, "a": 1}')), True),
        (said(None, called('{"a":1}')), said(None, called('{"a":2}')), False),
        (said(None, called("{")), said(None, called("{")), True),
        (said("x", called("{}")), said("x"), False),
    ],
)
def test_the_rule_by_which_shadow_mode_judges(one: Answer, other: Answer, wanted: bool) -> None:
    assert agree(one, other, 0.8) is wanted
    assert agree(other, one, 0.8) is wanted


def test_overlap() -> None:
    assert overlap("", "") == 1.0
    assert overlap("a b", "A B!") == 1.0
    assert overlap("a b c d", "a b") == pytest.approx(2 / 3)
    assert overlap("a", "b") == 0.0


async def test_models_that_nobody_serves_are_no_labels() -> None:
    gateway = Gateway(SemanticMode.SHADOW)
    gateway.semantic._label = lambda name: "other"
    await gateway.ask(FRANCE)
    await gateway.ask("what's the capital of France")
    assert [labels for labels, _ in gateway.metrics.values(names.SEMANTIC_SHADOW)] == [
        ("other", "right")
    ]
    found = gateway.metrics.histograms(names.SEMANTIC_SIMILARITY)
    assert [labels for labels, _ in found] == [("other", "right")]
