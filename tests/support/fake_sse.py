"""A server that speaks just enough of the OpenAI API to be measured: tokens at a fixed pace."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeSSE:
    """How the server behaves, and what it was asked."""

    first: float = 0.0
    """Seconds before the first token."""
    gap: float = 0.0
    """Seconds between tokens."""
    num_tokens: int | None = None
    """Tokens per answer; None: max_tokens."""
    status: int = 200
    ending: str = "done"
    """done, cut (close the socket before the end), error (an error event), nothing (no chunk)."""
    has_usage: bool = True
    words: tuple[str, ...] = ()
    """The answer's chunks; default one " x" per token."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(fake: FakeSSE) -> Iterator[FakeSSE]:
    """Run the server on a free port, in a thread with a loop of its own, until the block ends."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(lambda r, w: _answer(fake, r, w), "127.0.0.1", 0)
    )
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_shut(server))
        loop.close()


async def _shut(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _answer(
    fake: FakeSSE, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            _whole(writer, *_question(path))
        elif fake.status != 200:
            _whole(writer, fake.status, {"error": {"message": f"no: {fake.status}"}})
        else:
            fake.bodies.append(json.loads(body))
            fake.headers.append(headers)
            await _stream(fake, fake.bodies[-1], "chat" in path, writer)
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


def _question(path: str) -> tuple[int, Any]:
    if path.endswith("/v1/models"):
        return 200, {"object": "list", "data": [{"id": "fake", "object": "model"}]}
    if path.endswith("/version"):
        return 200, {"version": "fake-1"}
    return 404, {"error": {"message": f"no {path}"}}


def _whole(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


async def _stream(
    fake: FakeSSE, asked: dict[str, Any], is_chat: bool, writer: asyncio.StreamWriter
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    count = fake.num_tokens or asked.get("max_tokens", 1)
    words = fake.words or (" x",) * count
    if fake.ending != "nothing":
        for number, word in enumerate(words):
            await asyncio.sleep(fake.gap if number else fake.first)
            text = {"delta": {"content": word}} if is_chat else {"text": word}
            _event(writer, {"choices": [{"index": 0, "finish_reason": None, **text}]})
            await writer.drain()
        if fake.ending == "cut":
            writer.transport.abort()
            return
        if fake.ending == "error":
            _event(writer, {"error": {"message": "engine died"}})
        if fake.has_usage:
            usage = {"prompt_tokens": 7, "completion_tokens": count}
            _event(writer, {"choices": [], "usage": usage})
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def _event(writer: asyncio.StreamWriter, value: Any) -> None:
    _chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
