"""The cache and the translations, in the gateway and over sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.patience import PATIENCE
from tests.support.stub_replica import Reply, StubReplica, stub_replica
from tests.support.wire_answers import sse

from headrace.config.fleet.accounts import AccountsConfig, Limits
from headrace.config.fleet.cache import CacheConfig
from headrace.config.fleet.gateway import GatewayConfig, RetryConfig, TimeoutConfig
from headrace.config.fleet.models import Arm, ModelRule, ModelsConfig
from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import SystemClock
from headrace.fleet.gateway.app import build_app
from headrace.fleet.gateway.build import Parts, build
from headrace.fleet.replica import Standing
from headrace.fleet.sse import parse

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0,
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunk(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": end}
    return {
        "id": "a",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [choice],
    }


STREAM = [
    sse(chunk({"role": "assistant", "content": ""})),
    sse(chunk({"content": "Hel"})),
    sse(chunk({"content": "lo"})),
    sse(chunk({}, "stop"), {**chunk({}), "choices": [], "usage": USAGE}) + b"data: [DONE]\n\n",
]


def openai(path: str, body: bytes) -> Reply:
    if path == "/v1/models":
        return Reply(b'{"data":[{"id":"m"}]}')
    if json.loads(body).get("stream"):
        return Reply(list(STREAM), content_type="text/event-stream")
    message = {"role": "assistant", "content": "Hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = {
        "id": "a",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [choice],
    }
    return Reply(json.dumps({**whole, "usage": USAGE}).encode())


class Client(httpx.AsyncClient):
    """Of one gateway."""

    parts: Parts

    async def settle(self) -> None:
        """Until all that was to be kept is."""
        await self.parts.service.cache.settle()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  what is waited for is behind a socket
            await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway(
    stub: StubReplica,
    dialect: Dialect = Dialect.OPENAI,
    limits: Limits = Limits(),  # noqa: B008  a frozen value
    *,
    models: ModelsConfig = ModelsConfig(),  # noqa: B008  a frozen value
    labels: dict[str, str] | None = None,
    **cache: Any,
) -> AsyncIterator[Client]:
    clock = SystemClock()
    config = FleetConfig(
        gateway=GatewayConfig(
            timeouts=TimeoutConfig(first_token=20.0), retries=RetryConfig(resume_attempts=0)
        ),
        replicas=(ReplicaSpec(url=stub.url, dialect=dialect, models=("m",), labels=labels or {}),),
        models=models,
        accounts=AccountsConfig(anonymous=limits),
        cache=CacheConfig(enabled=True, **cache),
    )
    parts = build(config, clock)
    await parts.books.start()
    parts.registry.reconcile(config.replicas)
    transport = httpx.ASGITransport(build_app(parts, [], None, config, clock))
    try:
        async with Client(transport=transport, base_url="http://gateway") as client:
            client.parts = parts
            now = clock.monotonic
            await until(lambda: all(r.standing(now()) is Standing.READY for r in parts.registry))
            yield client
    finally:
        await parts.shadows.close()
        await parts.prober.close()
        await parts.service.cache.close()
        await parts.books.close()
        parts.registry.close()


def text_of(stream: bytes) -> str:
    events = parse(stream)
    assert events[-1].is_end
    chunks = [json.loads(event.data or b"") for event in events[:-1]]
    return "".join(c["delta"].get("content", "") for part in chunks for c in part["choices"])


async def test_a_stream_is_kept_and_told_both_ways() -> None:
    async with stub_replica(openai) as stub, gateway(stub) as client:
        first = await client.post(CHAT, json={**BODY, "stream": True})
        assert first.headers["x-headrace-cache"] == "miss"
        assert text_of(first.content) == "Hello"
        assert b"usage" not in first.content  # the gateway asked for it, the client did not
        await client.settle()
        again = await client.post(CHAT, json={**BODY, "stream": True})
        assert again.headers["x-headrace-cache"] == "hit"
        assert text_of(again.content) == "Hello"
        whole = await client.post(CHAT, json=BODY)
        assert whole.headers["x-headrace-cache"] == "hit"
        assert whole.json()["choices"][0]["message"]["content"] == "Hello"
        assert whole.json()["usage"] == {**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}
        assert len(stub.posts) == 1


async def test_a_whole_answer_is_told_as_a_stream() -> None:
    async with stub_replica(openai) as stub, gateway(stub) as client:
        await client.post(CHAT, json=BODY)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        await client.settle()
        streamed = await client.post(CHAT, json={**BODY, **options})
        assert text_of(streamed.content) == "Hello"
        assert json.loads(parse(streamed.content)[-2].data or b"")["usage"] == USAGE
        assert len(stub.posts) == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_identical_requests_are_made_once(is_stream: bool) -> None:
    async with stub_replica(openai) as stub, gateway(stub) as client:
        stub.gate.clear()
        body = {**BODY, "stream": is_stream}
        waiting = [asyncio.ensure_future(client.post(CHAT, json=body)) for _ in range(20)]
        await until(lambda: stub.posts)
        waiting.pop().cancel()
        await asyncio.sleep(0.02)
        stub.gate.set()
        answers = await asyncio.gather(*waiting)
        assert len(stub.posts) == 1
        assert len({answer.content for answer in answers}) == 1
        assert {answer.headers["x-headrace-cache"] for answer in answers} >= {"shared"}


async def test_the_last_client_that_leaves_ends_it_at_the_replica() -> None:
    async with stub_replica(openai) as stub, gateway(stub) as client:
        stub.gate.clear()
        waiting = [asyncio.ensure_future(client.post(CHAT, json=BODY)) for _ in range(3)]
        await until(lambda: stub.posts)
        for request in waiting:
            request.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: stub.num_left)


async def test_an_answer_that_broke_off_is_not_kept() -> None:
    def cut(path: str, body: bytes) -> Reply:
        reply = openai(path, body)
        is_stream = reply.content_type == "text/event-stream"
        return reply._replace(body=STREAM[:2], is_cut=True) if is_stream else reply

    async with stub_replica(cut) as stub, gateway(stub) as client:
        for _ in range(2):
            answer = await client.post(CHAT, json={**BODY, "stream": True})
            assert answer.headers["x-headrace-cache"] == "miss"
            assert b'"error"' in answer.content
        assert len(stub.posts) == 2


async def test_errors_are_not_kept_and_bypass_bypasses() -> None:
    def refuses(path: str, body: bytes) -> Reply:
        return (
            openai(path, body)
            if path == "/v1/models"
            else Reply(b'{"error":{"message":"no"}}', 400)
        )

    async with stub_replica(refuses) as stub, gateway(stub) as client:
        assert [(await client.post(CHAT, json=BODY)).status_code for _ in range(2)] == [400, 400]
        stub.handler = openai
        headers = {"x-headrace-cache": "bypass"}
        for _ in range(2):
            answer = await client.post(CHAT, json=BODY, headers=headers)
            assert answer.headers["x-headrace-cache"] == "bypass"
        only = await client.post(CHAT, json=BODY, headers={"x-headrace-cache": "only"})
        assert only.status_code == 504
        wrong = await client.post(CHAT, json=BODY, headers={"x-headrace-cache": "maybe"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-headrace-cache")


async def test_hits_count_as_requests_and_cost_nothing() -> None:
    limits = Limits(requests_per_minute=3, tokens_per_minute=100_000)
    async with stub_replica(openai) as stub, gateway(stub, limits=limits) as client:
        said = []
        for _ in range(4):
            answer = await client.post(CHAT, json=BODY)
            said.append((answer.status_code, answer.headers.get("x-headrace-cache")))
            await client.settle()
        assert said == [(200, "miss"), (200, "hit"), (200, "hit"), (429, None)]
        assert len(stub.posts) == 1


CLAUDE = [
    sse({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}, names=True),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}, names=True),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}}, names=True),
    sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}, names=True),
    sse({"type": "message_stop"}, names=True),
]  # fmt: skip


async def test_a_translated_stream_through_the_gateway_and_from_its_cache() -> None:
    def anthropic(path: str, body: bytes) -> Reply:
        if path == "/v1/models":
            return Reply(b'{"data":[{"id":"m","type":"model"}]}')
        assert path == "/v1/messages"
        return Reply(list(CLAUDE), content_type="text/event-stream")

    async with stub_replica(anthropic) as stub, gateway(stub, Dialect.ANTHROPIC) as client:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        first = await client.post(CHAT, json={**BODY, **options})
        assert first.headers["content-type"].startswith("text/event-stream")
        assert text_of(first.content) == "Hello"
        await client.settle()
        whole = await client.post(CHAT, json=BODY)
        assert whole.json()["choices"][0]["message"]["content"] == "Hello"
        assert whole.json()["usage"]["total_tokens"] == 5
        assert len(stub.posts) == 1
        refused = await client.post(CHAT, json={**BODY, "logit_bias": {"1": 1}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")


GOLD = {"tier": "gold"}
BY_LABEL = ModelsConfig(rules=(ModelRule(name="m", split=(Arm(labels=GOLD),)),))


@pytest.mark.parametrize("models", [ModelsConfig(), BY_LABEL])
async def test_a_rollout_forgets_what_the_old_version_said(models: ModelsConfig) -> None:
    async with stub_replica(openai) as stub, gateway(stub, models=models, labels=GOLD) as client:
        registry = client.parts.registry

        async def asked() -> str:
            answer = await client.post(CHAT, json=BODY)
            await client.settle()
            return answer.headers["x-headrace-cache"]

        assert [await asked(), await asked()] == ["miss", "hit"]
        (spec,) = [replica.spec for replica in registry]
        registry.reconcile([msgspec.structs.replace(spec, version="2")])
        now = SystemClock().monotonic
        await until(lambda: all(r.standing(now()) is Standing.READY for r in registry))
        assert [await asked(), await asked()] == ["miss", "hit"]
        registry.reconcile([])  # scaled to zero: what is known is told all the same
        assert await asked() == "hit"
