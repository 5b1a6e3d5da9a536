"""A replica inside the test's event loop that keeps responses: by owner for its peer, and gone when it is killed."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_replica import TOKEN, FakeReplica, Seen
from tests.support.listening import send_json

Kept = dict[tuple[str, str], dict[str, Any]]


@dataclass
class KeepingReplica(FakeReplica):
    """`/v1/responses` and `/v1/messages`; whole, streamed, and cut where a test wants it."""

    kept: Kept = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Method and path of every request about a response."""
    events_before_cut: int | None = None
    """A stream ends, as if it were complete, behind so many events."""
    says_error: bool = False
    """A stream says that it failed where it would be cut."""

    async def kill(self) -> None:
        self.kept.clear()
        await super().kill()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        owner = headers.get("x-headrace-owner", "")
        assert not owner or headers["x-headrace-peer"] == TOKEN
        if "/v1/responses/resp_" in path:
            self.asked.append(f"{method} {path}")
            await send_json(writer, *self._about(method, path, owner))
        elif method == "GET":
            await send_json(writer, *self._question(path))
        else:
            asked = json.loads(body)
            self.seen.append(Seen(path, headers, asked))
            await self._made(path, asked, owner, writer)
        return True

    def _about(self, method: str, path: str, owner: str) -> tuple[int, Any]:
        name, _, what = path.partition("?")[0].removeprefix("/v1/responses/").partition("/")
        found = self.kept.get((owner, name))
        if found is None:
            return 404, {"error": {"message": "no such response", "type": "x"}}
        if method == "DELETE":
            del self.kept[owner, name]
            return 200, {"id": name, "deleted": True}
        return 200, {"of": name, "what": what} if what else found

    async def _made(
        self, path: str, asked: dict[str, Any], owner: str, writer: asyncio.StreamWriter
    ) -> None:
        before = asked.get("previous_response_id")
        if before is not None and (owner, before) not in self.kept:
            problem = {"message": "gone", "code": "previous_response_not_found", "type": "x"}
            await send_json(writer, 400, {"error": problem})
            return
        name = f"resp_{self.port}_{len(self.seen)}"
        usage = {"input_tokens": 3, "output_tokens": 2}
        if asked.get("background"):
            usage = None
        made = {"id": name, "object": "response", "status": "completed", "usage": usage}
        self.kept[owner, name] = made
        if not asked.get("stream"):
            await send_json(writer, 200, made)
            return
        events = anthropic_events(name) if path == "/v1/messages" else response_events(made)
        if self.events_before_cut is not None:
            events = events[: self.events_before_cut]
            if self.says_error:
                events.append({"type": "error", "error": {"message": "engine died at 10.0.0.1"}})
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def response_events(made: dict[str, Any]) -> list[dict[str, Any]]:
    begun = {**made, "status": "in_progress", "usage": None}
    told: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    told += [{"type": "response.output_text.delta", "delta": f" w{n}"} for n in range(2)]
    told.append({"type": "response.completed", "response": made})
    return [{**event, "sequence_number": n} for n, event in enumerate(told)]


def anthropic_events(name: str) -> list[dict[str, Any]]:
    message = {"id": name, "usage": {"input_tokens": 3, "output_tokens": 1}}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": " w0"}},
        {"type": "message_delta", "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
