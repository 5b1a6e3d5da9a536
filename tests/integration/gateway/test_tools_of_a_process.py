"""A real gateway process with tools and a pipeline: what it lists, counts, reloads, and leaves behind."""

import asyncio
import json
import signal

import httpx
import psutil
import pytest
from tests.support.calling_model import calling
from tests.support.gateway_process import GatewayProcess
from tests.support.in_process_gateway import until
from tests.support.mcp_servers import pids, program_in
from tests.support.stub_replica import stub_replica

PIPELINE = {"name": "pipe", "steps": [{"name": "answer", "llm": {"model": "m"}}]}


def write(file, url, place, **fields):
    """A fleet's file; YAML reads JSON."""
    server = {"name": "calc", "command": program_in(place)}
    config = {
        "gateway": {"port": 0},
        "replicas": [{"url": url, "dialect": "openai", "models": ["m"]}],
        "tools": {"servers": [server]},
        "pipelines": {"items": [PIPELINE]},
    }
    file.write_text(json.dumps(config | fields))


def lives(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


CALL = 'call calc__add {"a": 1, "b": 2}'
TOOLS = [{"type": "mcp", "server_label": "calc"}]


async def ask(client, text, model="m", **fields):
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return (await client.post("/v1/chat/completions", json=body)).json()


async def until_connected(running):
    """Until the gateway says that the server's tools are there: from then on the first call succeeds."""
    said = "Tool server calc: 8 tools"
    await until(lambda: any(said in line for line in running.lines), said)


async def names(client):
    return [card["id"] for card in (await client.get("/v1/models")).json()["data"]]


async def test_what_a_process_lists_counts_and_reloads(tmp_path):
    file = tmp_path / "fleet.yaml"
    async with stub_replica(calling) as model:
        write(file, model.url, tmp_path)
        with GatewayProcess(file) as running:
            await asyncio.to_thread(running.wait_ready)
            async with httpx.AsyncClient(base_url=running.url) as client:
                await until_connected(running)
                called = await ask(client, CALL, tools=TOOLS)
                assert called["choices"][0]["message"]["content"] == "<3>"
                piped = await ask(client, "hi", "pipe")
                assert piped["choices"][0]["message"]["content"] == "<hi>"
                assert await names(client) == ["m", "pipe"]
                metrics = (await client.get("/metrics")).text
                calls = [line for line in metrics.splitlines() if "tool_calls_total{" in line]
                assert len(calls) == 1
                assert calls[0].endswith(" 1")
                assert 'outcome="ok"' in calls[0]

                (pid,) = pids(tmp_path)
                broken = {"name": "pipe", "steps": [{"name": "a", "llm": {"model": "pipe"}}]}
                write(file, model.url, tmp_path, pipelines={"items": [broken]})
                running.process.send_signal(signal.SIGHUP)
                await until(lambda: any("go round" in line for line in running.lines), "refused")
                assert await names(client) == ["m", "pipe"]

                renamed = [{**PIPELINE, "name": "other"}]
                write(file, model.url, tmp_path, pipelines={"items": renamed}, tools={})
                running.process.send_signal(signal.SIGHUP)
                await until(lambda: not lives(pid), "the server of tools has ended")
                assert await names(client) == ["m", "other"]
                refused = await ask(client, CALL, tools=TOOLS)
                assert refused["error"]["param"] == "tools[0].server_label"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_server_of_tools_is_left_behind(tmp_path, number):
    file = tmp_path / "fleet.yaml"
    async with stub_replica(calling) as model:
        write(file, model.url, tmp_path)
        with GatewayProcess(file) as running:
            await asyncio.to_thread(running.wait_ready)
            await until(lambda: pids(tmp_path), "the server of tools runs")
            (pid,) = pids(tmp_path)
            running.process.send_signal(number)
            await until(lambda: running.process.poll() is not None, "the gateway has ended")
            await until(lambda: not lives(pid), "the server of tools has ended")
