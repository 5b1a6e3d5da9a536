"""Requests that no client should send, for every operation of an OpenAPI document, as bytes for a socket."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.garbage import odd_value

_RAW = [
    b'{"temperature": NaN}', b'{"prompt": "a", "top_p": Infinity}', b'{"a": -Infinity}', b"1e999999",
    b'{"prompt": "\xff\xfe\xfa"}', b'\xef\xbb\xbf{"prompt": "a"}', '{"prompt": "a"}'.encode("utf-16"),
    b'{"prompt": "\\ud800"}', b'{"prompt": "a", "prompt": 7}', b"", b"null", b"[]", b'"x"', b"0", b"\x00",
    b'{"n": ' + b"9" * 5000 + b"}", b'{"prompt": "' + b"a" * 200_000 + b'"}', b"{" * 90_000,
    b"[" * 90_000 + b"]" * 90_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"prompt": "a"', b"a=b&c=d",
]  # fmt: skip
_MEDIA = [
    "application/json; charset=utf-16", "text/plain", "application/x-www-form-urlencoded", "", "\xff",
    "multipart/form-data; boundary=x", "multipart/form-data", "application/json" * 50, "*/*", "json",
    "application/jsonl", "image/png",
]  # fmt: skip
_HEADERS = [
    "Accept: text/event-stream", "Accept-Encoding: \x7f", "X-Request-Id: " + "a" * 4000, "Last-Event-ID: -1",
    "X-Request-Id: \xe9", "Authorization: Bearer", "Authorization: \xff", "Expect: 100-continue", "Range: bytes=0-",
    "anthropic-version: never", "X-Priority: nan", "Cookie: a", "traceparent: 00-zz", "Connection: upgrade",
    "X-HTTP-Method-Override: DELETE", "Content-Encoding: gzip", "Transfer-Encoding: gzip", "X-Forwarded-For: ::",
]  # fmt: skip
_PATHS = [
    "%00",
    "..",
    "a" * 3000,
    "%ff",
    "?n=" + "9" * 400,
    "-1",
    "%2e%2e%2f",
    "",
    "\xe9",
    "?limit=x&after=%00",
]
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"]


@dataclass(frozen=True)
class Answer:
    """What came back; the status is None when the connection was closed without one."""

    status: int | None
    body: bytes


@dataclass(frozen=True)
class _Operation:
    method: str
    path: str
    example: dict[str, Any] | None
    names: tuple[str, ...]


class Fuzz:
    """Draws requests over all operations of a document. All that is random comes from `rng`."""

    def __init__(self, document: dict[str, Any], rng: random.Random) -> None:
        self._rng = rng
        self.operations = list(_operations(document))

    def request(self) -> bytes:
        """One request, headers and body."""
        rng = self._rng
        operation = rng.choice(self.operations)
        method, path = operation.method, operation.path
        while "{" in path:
            begin, _, rest = path.partition("{")
            path = begin + rng.choice([*_PATHS, "x"]) + rest.partition("}")[2]
        if rng.random() < 0.05:
            method = rng.choice(_METHODS)
        if rng.random() < 0.05:
            path += rng.choice(_PATHS)
        return self._framed(method, path, self._body(operation))

    def _body(self, operation: _Operation) -> bytes:
        rng = self._rng
        if operation.example is None:
            return rng.choice(_RAW) if rng.random() < 0.2 else b""
        if rng.random() < 0.25:
            return rng.choice([*_RAW, rng.randbytes(rng.randrange(400))])
        body = json.loads(json.dumps(operation.example))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            self._distort(body, operation.names)
        text = json.dumps(body).encode("utf-8", "surrogatepass")
        if rng.random() < 0.1:
            place = rng.randrange(len(text))
            text = text[:place] + rng.randbytes(rng.randrange(3)) + text[place + rng.randrange(3) :]
        return text

    def _distort(self, place: Any, names: tuple[str, ...]) -> None:
        """Put an odd value at the top or somewhere inside."""
        rng = self._rng
        while rng.random() < 0.5:
            inner = [v for v in (place.values() if isinstance(place, dict) else place) if v]
            inner = [v for v in inner if isinstance(v, dict | list)]
            if not inner:
                break
            place = rng.choice(inner)
        if isinstance(place, dict):
            place[rng.choice([*names, *place, "nobody"])] = odd_value(rng)
        elif place:
            place[rng.randrange(len(place))] = odd_value(rng)

    def _framed(self, method: str, path: str, body: bytes) -> bytes:
        rng = self._rng
        media = "application/json" if rng.random() < 0.9 else rng.choice(_MEDIA)
        length = len(body)
        if rng.random() < 0.03:
            length += rng.choice((-1, 7, 10**9, 10**30))
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"Content-Type: {media}", f"Content-Length: {max(length, 0)}"]
        if rng.random() < 0.2:
            lines.append(rng.choice(_HEADERS))
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _operations(document: dict[str, Any]) -> Iterator[_Operation]:
    components = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody")
            content = next(iter(body["content"].values())) if body else {}
            example = content.get("example", {}) if body else None
            if not isinstance(example, dict | None):
                example = {}
            names = tuple(sorted(set(_names(content.get("schema", {}), components))))
            yield _Operation(method.upper(), path, example, names)


def _names(schema: dict[str, Any], components: dict[str, Any]) -> Iterator[str]:
    """The fields of the body's own object."""
    for one in schema.get("anyOf", [schema]):
        found = components[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        if "anyOf" in found:
            yield from _names(found, components)
        yield from found.get("properties", {})


async def send(port: int, request: bytes, seconds: float = 60.0) -> Answer:
    """Send it on a connection of its own, say that no more comes, read until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(seconds):
            try:
                writer.write(request)
                await writer.drain()
                announced = b"\r\n\r\n" in request and _is_short(request)
                if announced and writer.can_write_eof():
                    writer.write_eof()
                answer = await reader.read()
            except (ConnectionResetError, BrokenPipeError):
                return Answer(None, b"")
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head else None
    return Answer(status, body)


def _is_short(request: bytes) -> bool:
    """The body is shorter than announced: only the end of the connection ends it."""
    head, _, body = request.partition(b"\r\n\r\n")
    announced = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.startswith(b"Content-Length")
    )
    return announced > len(body)
