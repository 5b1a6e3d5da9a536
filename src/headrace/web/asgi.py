"""The words of ASGI, and the two ways a response leaves: whole, or as a problem."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from headrace.web.problems import Answer, answer_to

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = "application/json"


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


async def send_body(
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    content_type: str = JSON,
    headers: Mapping[str, str] | None = None,
) -> None:
    """A whole response."""
    await send(start_message(status, content_type, {"content-length": str(len(body))}, headers))
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: Any, *, status: int = 200) -> None:
    """A struct as JSON."""
    await send_body(send, msgspec.json.encode(value), status=status)


async def send_problem(
    send: Send, error: Exception, write: Callable[[Answer], bytes] | None = None
) -> None:
    """An error object with its status; `write` writes it as its API has it, if not as OpenAI."""
    answer = answer_to(error)
    body = answer.body if write is None else write(answer)
    await send_body(send, body, status=answer.status, headers=answer.headers)


def start_message(
    status: int, content_type: str, *headers: Mapping[str, str] | None
) -> dict[str, Any]:
    """`http.response.start` with these headers."""
    lines = [(b"content-type", _line(content_type))]
    for group in headers:
        if group:
            lines += [(k.encode("latin-1"), _line(v)) for k, v in group.items()]
    return {"type": "http.response.start", "status": status, "headers": lines}


def _line(value: str) -> bytes:
    """A header's value: printable ASCII, whoever named what stands in it. A line break would begin another header."""
    if value.isascii() and value.isprintable():
        return value.encode()
    return "".join(char if " " <= char <= "~" else "?" for char in value).encode()
