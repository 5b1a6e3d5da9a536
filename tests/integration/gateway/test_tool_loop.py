"""A gateway that calls tools: real servers of the Model Context Protocol, and HTTP endpoints."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import msgspec
import psutil
import pytest
from tests.support.calling_model import calling
from tests.support.echo_model import spec_of_stub
from tests.support.in_process_gateway import CHAT, InProcessGateway, quick, until
from tests.support.mcp_servers import http_server_in, pids, program_in
from tests.support.patience import PATIENCE
from tests.support.ports import held_port
from tests.support.stub_replica import Reply, stub_replica

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig
from headrace.config.fleet.tools import (
    Grant,
    HttpMethod,
    HttpTool,
    McpServer,
    Offer,
    ToolsConfig,
)
from headrace.config.secret import Secret

RESPONSES = "/v1/responses"
CALC = {"type": "mcp", "server_label": "calc"}
OFFER = Offer(models=("*",), tools=("*",))


class Site:
    """A gateway with tools, and its replica."""

    def __init__(self, gateway, model):
        self.gateway = gateway
        self.model = model

    def call(self, text, *, tools=(CALC,), **fields):
        messages = [{"role": "user", "content": text}]
        return self.gateway.call(CHAT, model="m", messages=messages, tools=list(tools), **fields)

    async def ask(self, text, **fields):
        return await self.call(text, **fields).end()

    def reload(self, **changes):
        config = self.gateway.service._trade.config
        self.gateway.service.apply(msgspec.structs.replace(config, **changes))


@asynccontextmanager
async def site(tools, **fields):
    async with stub_replica(calling) as model:
        made = InProcessGateway(quick([spec_of_stub(model)], tools=tools, **fields))
        await made.gateway.start()
        try:
            await made.ready(1)
            yield Site(made, model)
            await made.check_idle()
        finally:
            await made.gateway.close()


def by_stdio(place, **fields):
    return ToolsConfig(servers=(McpServer(name="calc", command=program_in(place), **fields),))


@pytest.fixture(autouse=True)
def _patience_with_a_server_that_starts(monkeypatch):
    monkeypatch.setattr("headrace.fleet.gateway.tools.mcp_source._FIRST_WAIT", PATIENCE)


async def until_called(at):
    """Until the server's tools are there, and a call of one succeeds."""

    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await at.ask('call calc__add {"a": 2, "b": 3}')
            if answer.json["choices"][0]["message"].get("content") == "<5>":
                return
            await asyncio.sleep(0.1)


async def gone(pid):
    await until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie",
        "the server has ended",
    )


async def test_a_server_over_stdio(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "of the gateway")
    config = by_stdio(tmp_path, env={"OWN": Secret("given")}, max_result=100_000)
    async with site(config) as at:
        whole = await at.ask('call calc__add {"a": 1, "b": 2}')
        assert whole.text == "<3>"
        assert whole.json["usage"]["total_tokens"] == 10
        streamed = await at.ask('call calc__add {"a": 3, "b": 4}', stream=True)
        streamed.check_unbroken()
        assert streamed.text == "<7>"
        told = await at.gateway.ask(
            RESPONSES, model="m", input='call calc__add {"a": 5, "b": 6}', tools=[CALC]
        )
        assert [item["type"] for item in told.json["output"]] == ["mcp_call", "message"]
        assert told.json["output"][1]["content"][0]["text"] == "<11>"

        offered = json.loads(at.model.posts[0][1])["tools"]
        assert {"calc__add", "calc__odd_name_"} < {tool["function"]["name"] for tool in offered}
        assert (await at.ask("call calc__odd_name_ {}")).text == "<odd>"

        environment = json.loads((await at.ask("call calc__environment {}")).text[1:-1])
        assert environment["OWN"] == "given"
        inherited = {name for name in environment if environment[name] == os.environ.get(name)}
        assert inherited <= {"PATH", "HOME", "LOGNAME", "USER", "SHELL", "TERM", "LC_CTYPE"}
        assert "MY_SECRET" not in environment

        failed = await at.ask("call calc__fail {}")
        assert "Error executing tool fail" in failed.text
        bad = await at.ask('call calc__add {"a": "x"}')
        assert bad.status == 200
        assert (await at.ask("call calc__add {}")).status == 200
        (pid,) = pids(tmp_path)  # no error of a tool cost the connection
    await gone(pid)


async def test_a_server_that_dies_is_started_again(tmp_path):
    async with site(by_stdio(tmp_path)) as at:
        assert "failed" in (await at.ask("call calc__die {}")).text
        await until_called(at)
        first, *_, second = pids(tmp_path)
        assert first != second


async def test_what_changes_without_a_call_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.fleet.gateway.tools.mcp_source._LOOK", 0.05)
    async with site(by_stdio(tmp_path)) as at:
        assert (await at.ask("call calc__learn {}")).text == "<done>"
        toolbox = at.gateway.gateway.parts.toolbox

        async def known():
            return {tool.local_name for tool in await toolbox.usable("t")}

        async with asyncio.timeout(PATIENCE):
            while True:
                if "learned" in await known():
                    break
                await asyncio.sleep(0.02)
        assert (await at.ask("call calc__learned {}")).text == "<news>"
        (pid,) = pids(tmp_path)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(pids(tmp_path)) == 2, "it is started again")


async def test_bounds_of_a_call(tmp_path):
    async with site(by_stdio(tmp_path, timeout=4.0, max_result=100, allow=("slow", "long"))) as at:
        text = (await at.ask('call calc__long {"size": 1000}')).text
        assert "x" * 100 in text
        assert "x" * 101 not in text
        assert "900 bytes more were cut off" in text
        assert "more than 4 s" in (await at.ask("call calc__slow {}")).text
        forbidden = await at.ask('call calc__add {"a": 1, "b": 2}')
        assert forbidden.json["choices"][0]["message"]["tool_calls"], "it is not the gateway's"


async def test_a_client_that_leaves_ends_the_call(tmp_path):
    async with site(by_stdio(tmp_path)) as at:
        call = at.call("call calc__slow {}")
        await until(lambda: len(at.model.posts) == 1, "the model is asked")
        await asyncio.sleep(0.1)
        call.leave()
        await call.end()
        assert len(at.model.posts) == 1
        assert (await at.ask('call calc__add {"a": 1, "b": 2}')).text == "<3>"


@pytest.mark.parametrize("headers", [{}, {"Authorization": Secret("Bearer x")}])
async def test_a_server_over_http_that_goes_and_comes_back(tmp_path, headers):
    with held_port() as port:
        url = f"http://127.0.0.1:{port}/mcp"
        config = ToolsConfig(servers=(McpServer(name="calc", url=url, headers=headers),))
        with http_server_in(tmp_path, port):
            async with site(config) as at:
                await until_called(at)
        async with site(config) as at:  # it is not there
            plain = await at.ask("hello")
            assert plain.text == "<hello>"
            with http_server_in(tmp_path, port):
                await until_called(at)
            assert "failed" in (await at.ask('call calc__add {"a": 1, "b": 2}')).text
            with http_server_in(tmp_path, port):
                await until_called(at)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("no-such-program-here",), "no-such-program-here cannot be started: No such file"),
        ((sys.executable, "-c", ""), ""),
    ],
)
async def test_why_a_program_is_no_server_is_said(caplog, command, said):
    server = McpServer(name="calc", command=command)
    async with site(ToolsConfig(servers=(server,))) as at:
        assert (await at.ask("hello", tools=[CALC])).status == 200
        call = await at.ask("hello", tools=[CALC], tool_choice="required")
        assert call.status == 503
        assert "'calc'" in call.error["message"]
    told = [record.message for record in caplog.records if "cannot be used" in record.message]
    assert told[0].startswith("The tool server calc cannot be used: ")
    assert said in told[0]
    assert "TaskGroup" not in told[0]


async def test_endpoints_as_tools(caplog):
    def handler(path, body):
        if path.startswith("/get"):
            return Reply(path.encode())
        if path == "/post":
            return Reply(b"got " + body)
        return Reply(b"nothing here", status=404)

    async with stub_replica(handler) as other:
        tools = (
            HttpTool(name="get", description="", url=f"{other.url}/get?k=v", method=HttpMethod.GET),
            HttpTool(name="post", description="", url=f"{other.url}/post", max_result=20),
            HttpTool(name="lost", description="", url=f"{other.url}/lost"),
            HttpTool(name="dead", description="", url="http://127.0.0.1:1/"),
            HttpTool(name="slow", description="", url=f"{other.url}/post", timeout=0.2),
        )
        async with site(ToolsConfig(http=tools, offers=(OFFER,))) as at:

            async def told(text):
                return (await at.ask(text, tools=[])).text

            assert await told('call get {"a": "x y", "n": [1]}') == "</get?k=v&a=x+y&n=%5B1%5D>"
            assert await told('call post {"a":1}') == '<got {"a":1}>'
            assert "cut off" in await told(f'call post {{"a":"{"x" * 50}"}}')
            assert await told("call lost {}") == "<The tool answered with status 404: nothing here>"
            assert "The tool failed" in await told("call dead {}")
            other.gate.clear()
            assert "more than 0.2 s" in await told("call slow {}")
            await until(lambda: other.num_left == 1, "the endpoint is left")
            other.gate.set()
        said = [record.message for record in caplog.records if "The tool" in record.message]
        place = other.url.removeprefix("http://")
        assert said[0] == f"The tool lost at {place} failed: status 404"
        assert said[1].startswith("The tool dead at 127.0.0.1:1 failed: ")
        assert said[2:] == [f"The tool slow at {place} failed: it took more than 0.2 s"]


async def test_whose_tools_and_whose_models():
    async with stub_replica(lambda _path, _body: Reply(b"done")) as other:
        tools = (HttpTool(name="do", description="", url=other.url),)
        grants = (Grant(tools=("do",), tenants=("a",)),)
        keys = (
            KeyConfig(name="a", key=Secret("key-a")),
            KeyConfig(name="b", key=Secret("key-b")),
            KeyConfig(name="c", key=Secret("key-c"), models=("other",)),
        )
        config = ToolsConfig(http=tools, grants=grants, offers=(OFFER,))
        async with site(config, accounts=AccountsConfig(keys=keys)) as at:

            async def by(key):
                headers = {"authorization": f"Bearer key-{key}"}
                return await at.ask("call do {}", tools=[], headers=headers)

            assert (await by("a")).text == "<done>"
            not_his = (await by("b")).json["choices"][0]
            assert not_his["finish_reason"] == "tool_calls"
            assert (await by("c")).status == 403
            assert len(other.posts) == 1


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({**CALC, "server_url": "http://evil.test"}, "tools"),
        ({**CALC, "server_label": "x"}, "tools[0].server_label"),
    ],
)
async def test_clients_bring_no_servers(entry, field):
    async with site(
        ToolsConfig(http=(HttpTool(name="calc", description="", url="http://127.0.0.1:1"),))
    ) as at:
        call = await at.ask("hello", tools=[entry])
        assert call.status == 400
        assert call.error["param"] == field
        assert not at.model.posts


async def test_a_new_configuration_changes_the_servers(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir()
    second.mkdir()
    async with site(by_stdio(first)) as at:
        assert (await at.ask('call calc__add {"a": 1, "b": 2}')).text == "<3>"
        (pid,) = pids(first)
        at.reload(tools=ToolsConfig(servers=(*by_stdio(first).servers,), max_rounds=3))
        assert (await at.ask('call calc__add {"a": 1, "b": 2}')).text == "<3>"
        assert pids(first) == [pid]
        at.reload(tools=by_stdio(second))
        assert (await at.ask('call calc__add {"a": 1, "b": 2}')).text == "<3>"
        assert len(pids(second)) == 1
        await gone(pid)
        at.reload(tools=ToolsConfig())
        assert (await at.ask("hello")).status == 400
    await gone(pids(second)[0])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_that_takes_too_long_is_put_down_as_ended_by_us(stream):
    tools = (HttpTool(name="do", description="", url="http://127.0.0.1:1/"),)
    async with site(ToolsConfig(http=tools, offers=(OFFER,), timeout=1.5)) as at:
        rows = []
        at.gateway.gateway.parts.books.ledger.record = rows.append
        at.model.gate.clear()
        call = await at.ask("hello", tools=[], stream=stream)
        assert call.status == 504
        assert "took more than 1.5 s" in call.error["message"]
        await until(lambda: at.model.num_left == 1, "the replica is left")
        at.model.gate.set()
        assert [row.status for row in rows] == [504], "it is no client that has left"
