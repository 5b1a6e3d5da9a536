"""Time limits of pipelines and their steps, over real sockets."""

import asyncio
import json

import msgspec
import pytest
from tests.support.in_process_gateway import CHAT, InProcessGateway, quick
from tests.support.pipeline_site import ANSWER, llm, site

from headrace.config.fleet.models import Arm, Fallback, ModelRule
from headrace.config.fleet.pipelines import PipelinesConfig
from headrace.config.fleet.replicas import Dialect, ReplicaSpec


@pytest.mark.parametrize("where", ["step", "pipeline"])
async def test_what_takes_too_long_is_ended(where):
    step = llm("slow", "x", **({"timeout": 1.0} if where == "step" else {}))
    async with site([step], pipeline={"timeout": 1.0} if where == "pipeline" else {}) as at:
        at.model.gate.clear()
        call = await at.ask()
        assert call.status == 504
        assert "slow" in call.error["message"] or where == "pipeline"
        assert "1 s" in call.error["message"]
        await at.gateway.until(lambda: at.model.num_left == 1, "the replica is left")
        at.model.gate.set()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_step_has_what_is_left_of_the_time(stream):
    async with site(pipeline={"timeout": 1.5}) as at:
        rows = []
        at.gateway.gateway.parts.books.ledger.record = rows.append
        at.model.gate.clear()
        call = await at.ask(stream=stream)
        assert call.status == 504
        assert call.error["message"] == "The pipeline 'pipe' took more than 1.5 s."
        await at.gateway.until(lambda: at.model.num_left == 1, "the replica is left")
        at.model.gate.set()
        assert [row.status for row in rows] == [504], "it is no client that has left"


async def test_a_pipeline_whose_time_is_over_asks_no_other_model_and_blames_none():
    arms = (Arm(), Arm(model="small", weight=0.0, canary=True))
    rule = ModelRule(name="m", split=arms, fallbacks=(Fallback(model="small"),))
    async with site(pipeline={"timeout": 1.5}, rules=(rule,)) as at:
        outcomes = []
        at.gateway.gateway.parts.canaries.note = lambda _trial, outcome, _now: outcomes.append(
            outcome
        )
        at.model.gate.clear()
        call = await at.ask()
        assert call.status == 504
        await at.gateway.until(
            lambda: at.model.num_left == len(at.model.posts), "the replica is left"
        )
        at.model.gate.set()
        assert [chat["model"] for chat in at.chats] == ["m"]
        assert "x-headrace-fallback" not in call.headers
        assert [outcome.is_error for outcome in outcomes] == [False]
        assert outcomes[0].seconds > 0


async def test_a_stream_of_the_last_step_ends_with_an_error_when_its_time_is_over():
    first = {"id": "a", "created": 1, "choices": [{"index": 0, "delta": {"content": "so"}}]}

    async def serve(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = b'{"data":[{"id":"m"}]}'
                if head.startswith("GET"):
                    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    writer.write(answer % len(body) + body)
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                writer.write(f"data: {json.dumps(first)}\n\n".encode())
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        spec = ReplicaSpec(url=url, dialect=Dialect.OPENAI, models=("m",))
        items = [{"name": "pipe", "steps": [ANSWER], "timeout": 2.0}]
        config = quick([spec], pipelines=msgspec.convert({"items": items}, PipelinesConfig))
        made = InProcessGateway(config)
        await made.gateway.start()
        try:
            await made.ready(1)
            call = await made.ask(CHAT, model="pipe", stream=True)
            assert (call.status, call.text) == (200, "so")
            assert call.error["message"] == "The pipeline 'pipe' took more than 2 s."
            assert call.body.endswith(b"data: [DONE]\n\n")
            await made.check_idle()
        finally:
            await made.gateway.close()
