"""A fleet of fake replicas in one process, for measurements of a gateway: an engine's queue, cache and pace, no model.

    python benchmarks/gateway/fakes.py --count 50 --first-port 9000

Each listens on a port of its own and answers as a headrace replica does: /readyz, /load, /v1/models and streamed
completions and chats. A step computes at most `CHUNK` prompt tokens at `prefill` tokens per second, running sequences
first, and takes `base + per_sequence * batch` seconds beside. Prompts are cut into blocks of 16 words; blocks that are
cached (least recently used go first, `cache_blocks` are kept) are not computed. One word is one token.
The defaults are those of SmolLM2-135M on two cores (benchmarks/engine_step.py, README).
"""

import argparse
import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass, field

import httptools
import uvloop

BLOCK_WORDS = 16
CHUNK = 512
WORD = " tide"


@dataclass
class Pace:
    """How fast a fake is."""

    prefill: float = 1900.0
    base: float = 0.005
    per_sequence: float = 0.0009
    max_sequences: int = 64
    cache_blocks: int = 4096


@dataclass(eq=False)
class Sequence:
    """One request at a fake."""

    connection: "Connection"
    hashes: list[bytes]
    missing: int
    left: int
    is_chat: bool
    prompt_tokens: int
    cached_tokens: int
    is_gone: bool = False
    made: int = 0


@dataclass
class Fake:
    """One replica."""

    pace: Pace
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Step after step, for ever."""
        while True:
            while self.waiting and len(self.running) < self.pace.max_sequences:
                self._start(self.waiting.pop(0))
            self.running = [s for s in self.running if not s.is_gone]
            if not self.running:
                self.wake.clear()
                if not self.waiting:
                    await self.wake.wait()
                continue
            await asyncio.sleep(self._plan())
            self._commit()

    def _start(self, sequence: Sequence) -> None:
        if sequence.is_gone:
            return
        run = 0
        for digest in sequence.hashes:
            if digest not in self.cache:
                break
            self.cache.move_to_end(digest)
            run += 1
        cached = min(run * BLOCK_WORDS, sequence.prompt_tokens - 1)
        sequence.cached_tokens = cached
        sequence.missing = sequence.prompt_tokens - cached
        self.prompt_tokens += sequence.prompt_tokens
        self.cached_tokens += cached
        self.running.append(sequence)

    def _plan(self) -> float:
        """Seconds of the next step."""
        decoding = sum(1 for s in self.running if not s.missing)
        budget = CHUNK
        for sequence in self.running:
            take = min(budget, sequence.missing)
            sequence.missing -= take
            budget -= take
        pace = self.pace
        return (CHUNK - budget) / pace.prefill + pace.base + pace.per_sequence * decoding

    def _commit(self) -> None:
        for sequence in list(self.running):
            if sequence.missing:
                continue
            if not sequence.made:
                for digest in sequence.hashes:
                    self.cache[digest] = None
                    self.cache.move_to_end(digest)
                while len(self.cache) > self.pace.cache_blocks:
                    self.cache.popitem(last=False)
            sequence.made += 1
            sequence.left -= 1
            sequence.connection.token(sequence)
            if not sequence.left:
                self.running.remove(sequence)

    def load(self) -> dict[str, object]:
        """As /load."""
        return {
            "state": "ready", "role": "both", "models": ["fake"], "num_running": len(self.running),
            "num_waiting": len(self.waiting), "max_num_seqs": self.pace.max_sequences,
            "outstanding_tokens": sum(s.missing + s.left for s in (*self.waiting, *self.running)),
            "kv_usage": 0.0, "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "requests": self.requests,
        }  # fmt: skip


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake
        self._sequence: Sequence | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sequence is not None:
            self._sequence.is_gone = True

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url.decode()
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url.endswith("completions"):
            self._begin(json.loads(self._body))
            return
        found: object = {"status": "ok"}
        if self._url == "/load":
            found = self._fake.load()
        elif self._url == "/v1/models":
            found = {"object": "list", "data": [{"id": "fake", "max_model_len": 1 << 20}]}
        body = json.dumps(found).encode()
        head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def _begin(self, request: dict) -> None:
        is_chat = "chat" in self._url
        text = request.get("prompt") or " ".join(m["content"] for m in request.get("messages", ()))
        words = text.split()
        digest, hashes = b"", []
        for at in range(0, len(words) - BLOCK_WORDS + 1, BLOCK_WORDS):
            block = " ".join(words[at : at + BLOCK_WORDS]).encode()
            digest = hashlib.blake2b(digest + block, digest_size=8).digest()
            hashes.append(digest)
        limit = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        self._fake.requests += 1
        self._sequence = Sequence(self, hashes, len(words), limit, is_chat, max(1, len(words)), 0)
        self._fake.waiting.append(self._sequence)
        self._fake.wake.set()

    def token(self, sequence: Sequence) -> None:
        """One more token, and after the last one the end."""
        parts = []
        if sequence.made == 1:
            head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            parts.append((head + "transfer-encoding: chunked\r\n\r\n").encode())
        finish = None if sequence.left else "length"
        text = {"delta": {"content": WORD}} if sequence.is_chat else {"text": WORD}
        events = [_event({"choices": [{"index": 0, **text, "finish_reason": finish}]})]
        if finish:
            usage = {
                "prompt_tokens": sequence.prompt_tokens,
                "completion_tokens": sequence.made,
                "total_tokens": sequence.prompt_tokens + sequence.made,
                "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
            }
            events += [_event({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]
        body = b"".join(events)
        parts.append(b"%x\r\n" % len(body) + body + b"\r\n")
        if finish:
            parts.append(b"0\r\n\r\n")
            self._sequence = None
        self._transport.write(b"".join(parts))


def _event(fields: dict) -> bytes:
    named = {"id": "cmpl-fake", "object": "chunk", "created": 1, "model": "fake", **fields}
    return b"data: " + json.dumps(named, separators=(",", ":")).encode() + b"\n\n"


async def serve(count: int, first_port: int, pace: Pace) -> None:
    """All of them, until killed."""
    loop = asyncio.get_running_loop()
    steps = []
    for number in range(count):
        fake = Fake(pace)
        steps.append(loop.create_task(fake.run()))
        await loop.create_server(
            lambda fake=fake: Connection(fake), "127.0.0.1", first_port + number
        )
    print("ready", flush=True)
    await asyncio.gather(*steps)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--first-port", type=int, default=9000)
    for name, value in vars(Pace()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args())
    count, first_port = options.pop("count"), options.pop("first_port")
    uvloop.run(serve(count, first_port, Pace(**options)))


if __name__ == "__main__":
    main()
