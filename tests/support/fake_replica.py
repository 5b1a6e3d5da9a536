"""A replica inside the test's own event loop: headrace's dialect with made-up tokens, and every way to fail.

Token `position` of an answer with `seed` is a pure function of both, so that whoever goes on with an answer, from its
token ids or from its text, can be held to what an undisturbed one would have said.
"""

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.listening import Listener, send_json, until_eof

TOKEN = "between machines"
#: Ids with this remainder have text that is held back until the next token, as half a character has.
_HELD = 3


@dataclass(frozen=True)
class Fault:
    """What becomes of one request. Bytes are those of the answer's body; -1: before its headers."""

    status: int = 0
    """Answer with this error."""
    retry_after: str = ""
    hang_at: int | None = None
    """Say nothing more after so many bytes."""
    cut_at: int | None = None
    """Close the connection there."""
    error_at: int | None = None
    """Streams: after the first event that ends behind so many bytes, say that it failed."""
    raw: bytes = b""
    """Send this instead of an answer, and keep the connection."""
    content_type: str = ""
    padding: int = 0
    """Make the answer larger by so many bytes."""
    delay: float = 0.0
    """Seconds before the answer begins."""
    closes: bool = False
    """Close the connection after the answer, without having said so."""


@dataclass
class Seen:
    """One request that it got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def token_id(seed: int, position: int) -> int:
    """What an answer says at a position."""
    return (seed * 7919 + position * 104_729 + (seed ^ position) * 31) % 997


def word(token: int) -> str:
    """Text of a token; no two have the same."""
    return f" w{token}é" if token % 5 == 0 else f" w{token}"


def text_of(seed: int, count: int, first: int = 0) -> str:
    """What an undisturbed answer says."""
    return "".join(word(token_id(seed, i)) for i in range(first, count))


@dataclass
class FakeReplica:
    """One server. `start` it, then it may be killed and started again on the same port."""

    model: str = "fake"
    peer_token: str | None = TOKEN
    tells_ids: bool = True
    """To its peers, as it should."""
    is_ready: bool = True
    is_draining: bool = False
    piece: int = 0
    """Streams leave in pieces of so many bytes, cut wherever that is; 0: event by event."""
    gap: float = 0.0
    """Seconds between tokens."""
    line_end: bytes = b"\n"
    max_num_seqs: int = 8
    kv_usage: float = 0.1
    prefix_hit_rate: float = 0.0
    faults: deque[Fault] = field(default_factory=deque)
    """For the next requests for text, one each."""
    always: Fault | None = None
    """For all of them that have none of their own."""
    hangs: bool = False
    """It takes connections and answers nothing at all, probes neither."""
    seen: list[Seen] = field(default_factory=list)
    num_running: int = 0
    num_left: int = 0
    """Requests whose client closed the connection before the answer's end."""

    def __post_init__(self) -> None:
        self._listener = Listener(self._connected)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_connections(self) -> int:
        return self._listener.num_connections

    async def start(self) -> "FakeReplica":
        await self._listener.start()
        return self

    async def kill(self) -> None:
        """As a process that dies: every connection is reset, and new ones are refused."""
        await self._listener.kill()

    # -- HTTP -------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._exchange(reader, writer):
            pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.hangs:
            await reader.read()
            return False
        if method == "GET":
            await send_json(writer, *self._question(path))
            return True
        if path == "/v2/repository/index":  # Triton's question for models
            await send_json(writer, 200, [{"name": self.model}])
            return True
        asked = json.loads(body)
        self.seen.append(Seen(path, headers, asked))
        fault = self.faults.popleft() if self.faults else self.always or Fault()
        return await self._answer(path, asked, fault, reader, writer)

    def _question(self, path: str) -> tuple[int, Any]:
        if path in ("/readyz", "/health", "/v2/health/ready"):
            return (200, {"status": "ok"}) if self.is_ready else (503, {"status": "loading"})
        if path == "/load":
            state = "draining" if self.is_draining else "ready"
            return 200, {
                "state": state,
                "num_running": self.num_running,
                "num_waiting": 0,
                "max_num_seqs": self.max_num_seqs,
                "kv_usage": self.kv_usage,
                "prefix_hit_rate": self.prefix_hit_rate,
                "outstanding_tokens": 0,
            }
        if path == "/v1/models":
            return 200, {"data": [{"id": self.model, "object": "model", "max_model_len": 4096}]}
        return 404, {"error": {"message": f"no {path}", "type": "x"}}

    async def _answer(
        self,
        path: str,
        asked: dict[str, Any],
        fault: Fault,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        self.num_running += 1
        gone = asyncio.ensure_future(until_eof(reader))
        work = asyncio.ensure_future(self._work(path, asked, fault, writer))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.num_left += 1
                return False
            return work.result() and not fault.closes and not gone.done()
        finally:
            self.num_running -= 1
            for task in (gone, work):
                task.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)

    async def _work(
        self, path: str, asked: dict[str, Any], fault: Fault, writer: asyncio.StreamWriter
    ) -> bool:
        """True: the connection may be used again."""
        await asyncio.sleep(fault.delay)
        if fault.raw:
            writer.write(fault.raw)
            await writer.drain()
            return True
        if fault.status:
            extra = {"retry-after": fault.retry_after} if fault.retry_after else {}
            problem = {"error": {"message": f"fault {fault.status}", "type": "fault"}}
            await send_json(writer, fault.status, problem, extra)
            return True
        if path not in ("/v1/chat/completions", "/v1/completions"):
            await send_json(writer, 200, {"data": [], "usage": {"prompt_tokens": 3}})
            return True
        answer = _Answer(self, asked, is_chat="chat" in path)
        if asked.get("prior_output_ids") is not None and not answer.is_peer(self.seen[-1].headers):
            await send_json(writer, 403, {"error": {"message": "peers only", "type": "x"}})
            return True
        is_stream = asked.get("stream") is True
        default = "text/event-stream; charset=utf-8" if is_stream else "application/json"
        sink = _Sink(writer, fault, fault.content_type or default, answer.seed, self.piece)
        if is_stream:
            async for event in answer.events(self.seen[-1].headers):
                await sink.write(event.replace(b"\n", self.line_end))
            await sink.end()
        else:
            await sink.write(answer.whole(fault.padding))
            await sink.end()
        return True


class _CutError(ConnectionError):
    pass


class _Sink:
    """A body on its way out, with a fault at a byte of it."""

    def __init__(
        self, writer: asyncio.StreamWriter, fault: Fault, kind: str, seed: int, piece: int
    ) -> None:
        self._writer = writer
        self._fault = fault
        self._kind = kind
        self._seed = seed
        self._piece = piece
        self._held = b""
        self._sent = -1

    async def write(self, data: bytes) -> None:
        if self._piece:
            data = self._held + data
            end = len(data) - len(data) % self._piece
            data, self._held = data[:end], data[end:]
            for start in range(0, len(data), self._piece):
                await self._send(data[start : start + self._piece])
                await asyncio.sleep(0)
        else:
            await self._send(data)

    async def end(self) -> None:
        await self._send(self._held)
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _send(self, data: bytes) -> None:
        await self._fail_at(-1)
        if self._sent < 0:
            self._sent = 0
            self._writer.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: {self._kind}\r\nx-headrace-seed: {self._seed}\r\n"
                "transfer-encoding: chunked\r\n\r\n".encode()
            )
        await self._fail_at(0)
        fault = self._fault
        for at in (fault.hang_at, fault.cut_at):
            if at is not None and self._sent < at <= self._sent + len(data):
                self._chunk(data[: at - self._sent])
                self._sent = at
                await self._fail_at(at)
        self._chunk(data)
        self._sent += len(data)
        await self._writer.drain()
        if fault.error_at is not None and self._sent >= fault.error_at:
            self._chunk(b'data: {"error":{"message":"engine died","type":"server_error"}}\n\n')
            self._chunk(b"data: [DONE]\n\n")
            self._writer.write(b"0\r\n\r\n")
            await self._writer.drain()
            raise _CutError

    async def _fail_at(self, at: int) -> None:
        if self._sent != at:
            return
        await self._writer.drain()
        if self._fault.cut_at == at:
            self._writer.transport.abort()
            raise _CutError
        if self._fault.hang_at == at:
            await asyncio.Event().wait()

    def _chunk(self, data: bytes) -> None:
        if data:
            self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class _Answer:
    def __init__(self, replica: FakeReplica, asked: dict[str, Any], *, is_chat: bool) -> None:
        self._replica = replica
        self._is_chat = is_chat
        self._number = len(replica.seen)
        self.seed: int = asked.get("seed") or 0
        self._count: int = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        prior = asked.get("prior_output_ids") or []
        self._prompt, said = self._prompt_of(asked)
        #: Tokens that are there already.
        self._first = len(prior) or len(re.findall(r" w\d+", said))
        assert prior == [token_id(self.seed, i) for i in range(len(prior))]
        if said:
            assert said == text_of(self.seed, self._first), said
        self._is_by_text = bool(said)
        self._last = self._count + (self._first if self._is_by_text else 0)
        self._asked = asked

    def _prompt_of(self, asked: dict[str, Any]) -> tuple[int, str]:
        """Prompt tokens, and what of an answer stands in it."""
        if not self._is_chat:
            prompt = asked.get("prompt")
            text = prompt if isinstance(prompt, str) else ""
            question, _, _ = text.partition(" w")
            return 1 + len(text.split()), text[len(question) :]
        messages = asked.get("messages") or []
        size = 1 + sum(len(str(m["content"]).split()) for m in messages)
        last = messages[-1] if messages else {}
        return size, last["content"] if last.get("role") == "assistant" else ""

    def is_peer(self, headers: dict[str, str]) -> bool:
        token = self._replica.peer_token
        return token is not None and headers.get("x-headrace-peer") == token

    async def events(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        shows = self.is_peer(headers) and self._replica.tells_ids
        if self._is_chat:
            yield self._event({"delta": {"role": "assistant", "content": ""}})
        held, comments = "", b""
        start = self._first
        while shows and start and token_id(self.seed, start - 1) % 7 == _HELD:
            start -= 1  # their ids were told, and their text was not
            held = word(token_id(self.seed, start)) + held
        for position in range(self._first, self._last):
            await asyncio.sleep(self._replica.gap)
            token = token_id(self.seed, position)
            if shows:
                comments += b': headrace {"index":0,"token_ids":[%d]}\n' % token
            held += word(token)
            if shows and token % 7 == _HELD and position + 1 < self._last:
                if token % 2:
                    # Alone where its text is held back; else stacked in front of the next.
                    yield comments + b"\n"
                    comments = b""
                continue
            yield comments + self._event(self._text(held))
            held, comments = "", b""
        yield self._event({**self._text(""), "finish_reason": "length"})
        if (self._asked.get("stream_options") or {}).get("include_usage"):
            yield self._frame({"choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def whole(self, padding: int) -> bytes:
        text = text_of(self.seed, self._last, self._first)
        content = (
            {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        )
        choice = {"index": 0, **content, "finish_reason": "length"}
        return json.dumps(
            {"id": "x", "choices": [choice], "usage": self._usage(), "pad": "x" * padding}
        ).encode()

    def _usage(self) -> dict[str, int]:
        prompt, output = self._prompt, self._last - (self._first if self._is_by_text else 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }

    def _text(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self._is_chat else {"text": text}

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._frame({"choices": [{"index": 0, "finish_reason": None, **choice}]})

    def _frame(self, fields: dict[str, Any]) -> bytes:
        name = f"of-{self._replica.port}-{self._number}"
        chunk = {"id": name, "created": self._number, "model": "fake", **fields}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def replicas(count: int, **options: Any) -> AsyncIterator[list[FakeReplica]]:
    """So many of them, started; gone when the block ends."""
    made = [await FakeReplica(**options).start() for _ in range(count)]
    try:
        yield made
    finally:
        for replica in made:
            await replica.kill()
