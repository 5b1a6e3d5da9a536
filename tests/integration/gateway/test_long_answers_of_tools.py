"""Tools whose answers are too long, or have no end: they cost a bounded part of memory and time, and nobody else's calls."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import pytest
from tests.support.in_process_gateway import until
from tests.support.patience import PATIENCE

from headrace.config.fleet.tools import HttpTool, McpServer
from headrace.fleet.gateway.tools import mcp_source
from headrace.fleet.gateway.tools.http_source import HttpSource
from headrace.fleet.gateway.tools.mcp_source import McpSource
from headrace.fleet.gateway.tools.values import Tool

#: Bytes of one piece of an endless answer.
PIECE = b"x" * 65536


def tool_of(source, name):
    return Tool(name=name, description="", parameters={}, source=source, local_name=name)


# -- plain endpoints ----------------------------------------------------------------------------------


@asynccontextmanager
async def server_of(answer):
    """An HTTP server: `answer(head, body, writer)` for every request; its address, and what it has sent and seen."""
    seen = Seen()

    async def serve(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = dict(part.lower().split(": ", 1) for part in head.strip().split("\r\n")[1:])
                body = await reader.readexactly(int(lines.get("content-length", "0")))
                seen.num_requests += 1
                await answer(head, body, Counting(writer, seen))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            seen.num_left += 1
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield seen


class Seen:
    url = ""
    num_requests = 0
    num_left = 0
    num_bytes = 0


class Counting:
    """Writes, and counts what the other side took."""

    def __init__(self, writer, seen):
        self._writer = writer
        self._seen = seen

    async def write(self, data):
        self._writer.write(data)
        await self._writer.drain()
        self._seen.num_bytes += len(data)

    async def answer(self, body, kind="application/json", headers=""):
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}"
        )
        await self.write(head.encode() + b"\r\n" + body)

    async def until_left(self):
        await self._writer.wait_closed()
        raise ConnectionError

    async def endless(self, kind, piece=PIECE, first=b""):
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.write(head.encode())
        if first:
            await self.write(b"%x\r\n%s\r\n" % (len(first), first))
        while True:
            await self.write(b"%x\r\n%s\r\n" % (len(piece), piece))


async def called(url, **fields):
    tool = HttpTool(name="do", description="", url=url, **fields)
    source = HttpSource(tool)
    try:
        return await source.call(tool_of("do", "do"), {})
    finally:
        await source.close()


async def test_an_endless_answer_of_an_endpoint_is_cut_and_left():
    async with server_of(lambda _head, _body, writer: writer.endless("text/plain")) as seen:
        result = await called(seen.url, max_result=1000)
        assert result.text == "x" * 1000 + "\n[the rest was cut off]"
        assert not result.is_error
        await until(lambda: seen.num_left == 1, "the connection is closed")
        # What the system's own buffers took, and no more.
        assert seen.num_bytes < 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("body", "bound", "text"),
    [
        (b"x" * 1000, 1000, "x" * 1000),
        (b"x" * 1001, 1000, "x" * 1000 + "\n[1 bytes more were cut off]"),
        ("ä".encode() * 501, 1001, "ä" * 500 + "\n[1 bytes more were cut off]"),
        (b"", 10, ""),
    ],
)
async def test_how_much_was_cut_is_said_where_it_is_known(body, bound, text):
    async with server_of(lambda _head, _body, writer: writer.answer(body)) as seen:
        assert (await called(seen.url, max_result=bound)).text == text


async def test_an_answer_that_drips_has_the_time_of_its_tool():
    async def drip(_head, _body, writer):
        await writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.01)

    async with server_of(drip) as seen:
        result = await called(seen.url, timeout=0.2)
        assert "more than 0.2 s" in result.text
        await until(lambda: seen.num_left == 1, "the connection is closed")


# -- servers of the Model Context Protocol over HTTP ---------------------------------------------------


def mcp(long):
    """A server of an older revision of the protocol; `long(id, writer)` answers calls of `long`, and `short` is a tool too."""

    async def answer(head, body, writer):
        if not head.startswith("POST"):
            await writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            return
        message = json.loads(body)
        method, number = message["method"], message.get("id")
        if number is None:
            await writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return
        if method == "tools/call" and message["params"]["name"] == "long":
            await long(number, writer)
            return
        result = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {
                "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("long", "short")]
            },
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }.get(method)  # fmt: skip
        told = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        await writer.answer(json.dumps({"jsonrpc": "2.0", "id": number, **told}).encode())

    return answer


def begin(number):
    return b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % number


@asynccontextmanager
async def connected(server, monkeypatch):
    monkeypatch.setattr(mcp_source, "_FIRST_WAIT", PATIENCE)
    monkeypatch.setattr(mcp_source, "_MAX_ANSWER", 1024 * 1024)
    source = McpSource(server)
    try:
        assert {tool.local_name for tool in await source.tools()} >= {"long", "short"}
        client = source._client
        yield source
        result = await source.call(tool_of("s", "short"), {})
        assert (result.text, result.is_error) == ("done", False)
        assert source._client is client, "no call cost the connection"
    finally:
        await source.close()


async def endless_json(number, writer):
    await writer.endless("application/json", first=begin(number))


async def endless_event(number, writer):
    await writer.endless("text/event-stream", first=b"event: message\ndata: " + begin(number))


async def endless_events(_number, writer):
    await writer.endless("text/event-stream", b": nothing happens\n\n" * 4096)


async def packed(number, writer):
    await writer.answer(begin(number), headers="content-encoding: gzip\r\n")


@pytest.mark.parametrize("long", [endless_json, endless_event, endless_events])
async def test_an_endless_answer_of_a_server_costs_its_call_alone(long, monkeypatch):
    async with server_of(mcp(long)) as seen:
        server = McpServer(name="s", url=f"{seen.url}/mcp", max_result=1000, timeout=PATIENCE)
        async with connected(server, monkeypatch) as source:
            num_left, num_bytes = seen.num_left, seen.num_bytes
            result = await source.call(tool_of("s", "long"), {})
            assert result.is_error
            assert f"more than {1024 * 1024 + 8000} bytes" in result.text
            await until(lambda: seen.num_left > num_left, "the connection is closed")
            assert seen.num_bytes - num_bytes < 64 * 1024 * 1024


async def test_what_is_packed_is_not_unpacked(monkeypatch):
    async with server_of(mcp(packed)) as seen:
        server = McpServer(name="s", url=f"{seen.url}/mcp")
        monkeypatch.setattr(mcp_source, "_FIRST_WAIT", PATIENCE)
        source = McpSource(server)
        try:
            await source.tools()
            assert (await source.call(tool_of("s", "long"), {})).is_error
        finally:
            await source.close()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_answer_that_nobody_waits_for_any_more_is_left(has_begun, monkeypatch):
    async def silent(_number, writer):
        if has_begun:
            await writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
        await writer.until_left()

    monkeypatch.setattr(mcp_source, "_LONGER", 0.2)
    async with server_of(mcp(silent)) as seen:
        server = McpServer(name="s", url=f"{seen.url}/mcp", timeout=2.0)
        monkeypatch.setattr(mcp_source, "_FIRST_WAIT", PATIENCE)
        source = McpSource(server)
        try:
            await source.tools()
            client, num_left = source._client, seen.num_left
            assert "more than 2 s" in (await source.call(tool_of("s", "long"), {})).text
            await until(lambda: seen.num_left > num_left, "the request is closed")
            assert source._client is client
        finally:
            await source.close()


# -- and over stdio -----------------------------------------------------------------------------------

PROGRAM = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message["method"]
    if number is None:
        continue
    name = message.get("params", {}).get("name")
    if method == "tools/call" and name != "short":
        size = 3 * 1024 * 1024 if name == "long" else 1 << 40
        sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % number)
        while size > 0:
            sys.stdout.write("x" * 65536)
            size -= 65536
        sys.stdout.write('"}]}}\\n')
        sys.stdout.flush()
        continue
    told = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("long", "endless", "short")]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }.get(method)
    answer = {"result": told} if told else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": number, **answer}), flush=True)
"""


def by_stdio(**fields):
    return McpServer(name="s", command=(sys.executable, "-c", PROGRAM), timeout=PATIENCE, **fields)


async def test_a_long_line_costs_its_call_alone(monkeypatch):
    async with connected(by_stdio(max_result=1000), monkeypatch) as source:
        result = await source.call(tool_of("s", "long"), {})
        assert result.is_error
        assert f"more than {1024 * 1024 + 8000} bytes" in result.text


async def test_a_program_that_writes_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(mcp_source, "_FIRST_WAIT", PATIENCE)
    monkeypatch.setattr(mcp_source, "_MAX_ANSWER", 65536)
    source = McpSource(by_stdio(max_result=1000))
    try:
        await source.tools()
        client = source._client
        result = await source.call(tool_of("s", "endless"), {})
        assert result.is_error
        assert "did not answer" in result.text
        await until(lambda: source._client not in (None, client), "it is started again")
        assert (await source.call(tool_of("s", "short"), {})).text == "done"
    finally:
        await source.close()
