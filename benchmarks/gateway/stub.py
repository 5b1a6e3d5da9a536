"""A stub model server: answers at once, or streams at a fixed pace. One process, as little work as can be.

    python benchmarks/gateway/stub.py --port 9100

Whole chats are answered at once. Streamed ones get `max_tokens` events, the first at once and the others `--interval`
seconds apart; all streams that wait share one timer wheel, so thousands cost little.
"""

import argparse
import asyncio
import json
from collections import deque

import httptools
import uvloop

_NAMED = b'{"id":"chatcmpl-stub","object":"chat.completion.chunk","created":1,"model":"stub","choices":[{"index":0,'
TOKEN = b"data: " + _NAMED + b'"delta":{"content":" tide"},"finish_reason":null}]}\n\n'
LAST = b"data: " + _NAMED + b'"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"id":"chatcmpl-stub","object":"chat.completion.chunk","created":1,"model":"stub","choices":[],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":10}}\n\ndata: [DONE]\n\n'
)
WHOLE = json.dumps(
    {
        "id": "chatcmpl-stub", "object": "chat.completion", "created": 1, "model": "stub",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }
).encode()  # fmt: skip
MODELS = b'{"object":"list","data":[{"id":"stub","object":"model","created":1,"owned_by":"stub"}]}'


class Wheel:
    """Streams, each due `interval` seconds after its last event: a queue, since all intervals are equal."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.due: deque[tuple[float, Connection]] = deque()

    async def turn(self) -> None:
        """Write what is due, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            while self.due and self.due[0][0] <= now:
                self.due.popleft()[1].next()
            await asyncio.sleep(max(0.0005, self.due[0][0] - loop.time()) if self.due else 0.001)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._url.endswith(b"/chat/completions"):
            self._answer(MODELS if self._url.endswith(b"/models") else b'{"status":"ok"}')
            return
        request = json.loads(self._body)
        if not request.get("stream"):
            self._answer(WHOLE)
            return
        self._left = self._total = request.get("max_tokens") or 16
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head)
        self.next()

    def next(self) -> None:
        """One more event."""
        if self._transport.is_closing():
            return
        self._left -= 1
        if self._left:
            self._chunk(TOKEN)
            self._wheel.due.append((self._loop.time() + self._wheel.interval, self))
        else:
            self._chunk(TOKEN + LAST + USAGE % self._total)
            self._transport.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)


async def serve(port: int, interval: float) -> None:
    """Until killed."""
    wheel = Wheel(interval)
    await asyncio.get_running_loop().create_server(
        lambda: Connection(wheel), "127.0.0.1", port, backlog=8192
    )
    await wheel.turn()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--interval", type=float, default=0.05)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.interval))


if __name__ == "__main__":
    main()
