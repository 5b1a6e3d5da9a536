"""One streamed request, as cheaply as Python can: the client shares its cores with the server.

A connection per request (nothing is reused, so that no server is helped by it), llhttp for the framing,
one clock read per received segment, and only `choices`, `usage` and `error` of each chunk are decoded.
"""

import asyncio
import ssl
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec
from msgspec import Struct

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError

_MAX_ERROR_BYTES = 65_536


class Outcome(Struct):
    """What happened to one request. Times are `Clock.monotonic` seconds."""

    due: float
    """When it should have been sent; latencies count from here, so that a late client hides nothing."""
    chunks: list[float]
    """When each chunk with a choice arrived."""
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int | None = None
    """As the server's usage says; None if it sent none."""
    error: str | None = None
    """Kind of failure: connect, disconnected, timeout, http 429, stream error, bad stream, …"""
    detail: str = ""


class Target(Struct, frozen=True, kw_only=True):
    """Where requests go."""

    host: str
    port: int
    is_tls: bool
    prefix: str
    """Path before /v1, without a slash at its end."""
    api_key: str | None = None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of one HTTP/1.1 request after which the connection is closed."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = (
            f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {host}:{self.port}\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        )
        return head.encode("latin-1") + body


def parse_url(url: str, api_key: str | None = None) -> Target:
    """The target that a base URL names. Raises ConfigError."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise ConfigError(f"'{url}' is not a URL.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"'{url}' is not an http:// or https:// URL.")
    if api_key is not None and not api_key.isascii():
        raise ConfigError("The API key must be ASCII.")
    is_tls = parts.scheme == "https"
    return Target(
        host=parts.hostname,
        port=port or (443 if is_tls else 80),
        is_tls=is_tls,
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        api_key=api_key,
    )


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Chunk(Struct):
    choices: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class Exchange(asyncio.Protocol):
    """One connection: writes the request when it stands, reads server-sent events until the end.

    `done` is set once, when `outcome` says what happened; `closed` when the socket is gone.
    """

    def __init__(self, request: bytes, outcome: Outcome, clock: Clock) -> None:
        self.outcome = outcome
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._pending = b""
        self._now = 0.0
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._now = self._clock.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish("bad stream", f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._now = self._clock.monotonic()
        self._finish("disconnected", str(exc or "the server closed the connection"))
        self.closed.set_result(None)

    def give_up(self, kind: str, detail: str) -> None:
        """End it from our side; nothing if it has ended."""
        self._now = self._clock.monotonic()
        self._finish(kind, detail)

    async def wait_closed(self) -> None:
        """Until the socket is gone, so that no transport outlives its loop."""
        if self._transport is not None:
            await self.closed

    def on_body(self, body: bytes) -> None:
        """Called by the parser with each piece of the body."""
        self._pending += body
        if self._parser.get_status_code() != 200:
            self._pending = self._pending[:_MAX_ERROR_BYTES]
            return
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._on_data(line[5:].strip())

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the body."""
        status = self._parser.get_status_code()
        if status != 200:
            self._finish(f"http {status}", _message(self._pending))
        elif not self.outcome.chunks:
            self._finish("empty stream", "")
        else:
            self._finish(None)

    def _on_data(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._finish(None if self.outcome.chunks else "empty stream")
            return
        try:
            chunk = _CHUNK.decode(payload)
        except msgspec.DecodeError as error:
            self._finish("bad stream", f"{error}: {payload[:80]!r}")
            return
        if chunk.error is not None:
            self._finish("stream error", str(chunk.error)[:200])
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self.outcome.prompt_tokens = chunk.usage.prompt_tokens
            self.outcome.output_tokens = chunk.usage.completion_tokens
        if chunk.choices:
            self.outcome.chunks.append(self._now)

    def _finish(self, error: str | None, detail: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self.outcome.ended = self._now
        self.outcome.error = error
        self.outcome.detail = detail
        if not self.done.done():  # a time-out has cancelled it
            self.done.set_result(None)
        if self._transport is not None:
            # Not close(): over TLS that would wait for the other side.
            self._transport.abort()


async def send(
    target: Target, request: bytes, *, due: float, time_limit: float, clock: Clock
) -> Outcome:
    """Send one request and follow its stream to the end. Never raises for what a server may do."""
    outcome = Outcome(due=due, chunks=[])
    exchange = Exchange(request, outcome, clock)
    context = ssl.create_default_context() if target.is_tls else None
    try:
        async with asyncio.timeout(time_limit):
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: exchange, target.host, target.port, ssl=context)
            await exchange.done
    except TimeoutError:
        exchange.give_up("timeout", f"no end after {time_limit:g} s")
    except OSError as error:
        exchange.give_up("connect", str(error))
    finally:
        exchange.give_up("cancelled", "the run was stopped")
        await exchange.wait_closed()
    return outcome


def _message(body: bytes) -> str:
    """The sentence in an error answer, of the shape that OpenAI's have; else its start."""
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:200]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
