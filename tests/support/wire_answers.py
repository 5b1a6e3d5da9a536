"""Answers of servers as bytes, and what a dialect makes of them however they are cut."""

import json
from typing import Any

from headrace.config.fleet.replicas import Dialect, ReplicaApi, ReplicaSpec
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.backends.values import CHAT, AnswerReader, Backend, Incoming
from headrace.fleet.sse import parse

URLS = {
    "bedrock": "https://bedrock-runtime.eu-west-1.amazonaws.com",
    "vertex": "https://eu-aiplatform.googleapis.com/v1/projects/p/locations/eu",
}


def backend(dialect: str, url: str | None = None, api: str = "auto", **fields: Any) -> Backend:
    url = url or URLS.get(dialect, "http://r:1")
    return backend_for(
        ReplicaSpec(url=url, dialect=Dialect(dialect), api=ReplicaApi(api), **fields)
    )


def call(body: dict[str, Any], path: str = CHAT) -> Incoming:
    return Incoming(
        path=path, body=json.dumps(body).encode(), is_stream=bool(body.get("stream")),
        request_id="r1", created=1_700_000_000,
    )  # fmt: skip


def sent(found: Backend, body: dict[str, Any], path: str = CHAT) -> Any:
    """The JSON that the server gets."""
    return json.loads(found.outgoing(call(body, path)).body)


def sse(*values: Any, names: bool = False) -> bytes:
    events = []
    for value in values:
        name = f"event: {value['type']}\n" if names else ""
        events.append(f"{name}data: {json.dumps(value)}\n\n")
    return "".join(events).encode()


def read(
    found: Backend, asked: Incoming, answer: bytes, *, cut: int | None = None, step: int = 0
) -> tuple[bytes, AnswerReader]:
    """All that the client gets."""
    reader = found.reader(asked, {})
    assert reader is not None
    if step:
        pieces = [answer[at : at + step] for at in range(0, len(answer), step)]
    else:
        pieces = [answer] if cut is None else [answer[:cut], answer[cut:]]
    told = b"".join(reader.feed(piece) for piece in pieces)
    return told + reader.finish(), reader


def chunks(told: bytes) -> list[dict[str, Any]]:
    """The events of a stream, its end marker checked and left out."""
    events = parse(told)
    assert [event.is_end for event in events] == [False] * (len(events) - 1) + [True]
    return [json.loads(event.data or b"") for event in events[:-1]]


def assert_cuts_do_not_matter(found: Backend, asked: Incoming, answer: bytes) -> bytes:
    """The same is told for every cut, and byte by byte; what is cut off is not complete."""
    told, reader = read(found, asked, answer)
    assert reader.is_complete
    for cut in range(len(answer)):
        assert read(found, asked, answer, cut=cut)[0] == told, cut
    assert read(found, asked, answer, step=1)[0] == told
    return told
