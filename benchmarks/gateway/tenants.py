"""Load of several tenants on a gateway, by a client that costs little: each keeps so many streams open, one after another.

HTTP/1.1 by hand: a client library would take more of the machine than gateway and replicas together.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Times:
    """Seconds to the first token, by tenant, each with the moment at which its request was sent."""

    ttft: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def of(self, begin: float, end: float, *without: str) -> list[float]:
        """Of requests that were sent in this time, of all tenants but these."""
        return [
            seconds
            for name, values in self.ttft.items()
            if name not in without
            for sent, seconds in values
            if begin <= sent < end
        ]

    def served(self, begin: float, end: float) -> dict[str, int]:
        """First tokens in this time, by tenant."""
        return {
            name: sum(begin <= sent + seconds < end for sent, seconds in values)
            for name, values in self.ttft.items()
        }


@dataclass
class Load:
    """All streams on one gateway."""

    url: str
    keys: Mapping[str, str]
    max_tokens: int = 16
    times: Times = field(default_factory=Times)
    is_over: bool = False

    def begin(self, tenant: str, count: int) -> list[asyncio.Task[None]]:
        """So many streams of a tenant, from now on."""
        return [asyncio.create_task(self._stream(tenant, number)) for number in range(count)]

    async def _stream(self, tenant: str, number: int) -> None:
        address = urlsplit(self.url)
        body = json.dumps(
            {
                "model": "fake",
                "messages": [{"role": "user", "content": f"Say something. {tenant} {number}"}],
                "max_tokens": self.max_tokens,
                "stream": True,
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.keys[tenant]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            while not self.is_over:
                writer.write(head + body)
                await self._answer(tenant, reader)
        finally:
            writer.close()

    async def _answer(self, tenant: str, reader: asyncio.StreamReader) -> None:
        sent = time.monotonic()
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer[:20]:
            self.times.refused[tenant] += 1
            length = answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            await asyncio.sleep(1.0)
            return
        is_first, data = True, b""
        while not data.endswith(b"0\r\n\r\n"):
            data = data[-8:] + await reader.read(1 << 16)
            if is_first and b'"content"' in data:
                is_first = False
                self.times.ttft[tenant].append((sent, time.monotonic() - sent))
