"""Clients that end their side right behind the request, as netcat does, get their answer all the same."""

import asyncio
from functools import partial

import pytest
import uvicorn
from uvicorn.server import ServerState

from headrace.web.protocol import BoundedHttpProtocol, ConnectionBounds


async def app(scope, receive, send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_answer_to_a_client_that_will_send_no_more(method: str) -> None:
    config = uvicorn.Config(app, log_config=None, access_log=False)
    config.load()
    loop = asyncio.get_running_loop()
    protocol = partial(
        BoundedHttpProtocol,
        config=config,
        server_state=ServerState(),
        app_state={},
        bounds=ConnectionBounds(max_connections=8, read_timeout=60.0, stall_timeout=60.0),
    )
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(f"{method} / HTTP/1.1\r\nhost: here\r\n\r\n".encode())
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == (b"ok" if method == "GET" else b"")
