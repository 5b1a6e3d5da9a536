"""A whole gateway in the test's event loop, called as ASGI: no sockets to its clients, real ones to its replicas."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.fake_replica import FakeReplica
from tests.support.patience import PATIENCE

from headrace.config.fleet.gateway import GatewayConfig, RetryConfig, TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.config.secret import Secret
from headrace.core.clock import SystemClock
from headrace.fleet.gateway.run import Gateway

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class ClientCall:
    """One client's request; it may leave at any time."""

    def __init__(
        self,
        gateway: Gateway,
        path: str,
        body: bytes,
        headers: dict[str, str],
        method: str = "POST",
        query: bytes = b"",
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_ended = False
        """The whole response was sent."""
        self._asked = body
        self._is_read = False
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
        self.task = asyncio.ensure_future(gateway.app(scope, self._receive, self._send))

    def leave(self) -> None:
        """The client closes its connection."""
        self._gone.set()

    async def end(self) -> "ClientCall":
        """Until the gateway is done with it."""
        async with asyncio.timeout(PATIENCE):
            await self.task
        return self

    async def until_body(self, size: int) -> None:
        """Until so many bytes of the answer have come, or it has ended."""
        async with asyncio.timeout(PATIENCE):
            while len(self.body) < size and not self.task.done():
                self._news.clear()
                waiting = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._asked, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        assert not self.is_ended, f"after its end: {message}"
        if message["type"] == "http.response.start":
            assert not self.status, "a second status"
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            assert self.status
            self.body += message.get("body", b"")
            self.is_ended = not message.get("more_body", False)
        self._news.set()

    # -- what it says ------------------------------------------------------------------------------

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """Chunks of a stream, without its end marker."""
        lines = self.body.decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for event in self.events for choice in event.get("choices", ())]

    @property
    def text(self) -> str:
        if not self.body.startswith(b"data:"):
            choice = self.json["choices"][0]
            return str(choice["message"]["content"] if "message" in choice else choice["text"])
        return "".join(
            c["delta"].get("content", "") if "delta" in c else c["text"] for c in self.choices
        )

    @property
    def finish_reasons(self) -> list[str]:
        return [c["finish_reason"] for c in self.choices if c.get("finish_reason")]

    @property
    def usage(self) -> dict[str, Any] | None:
        told = [event["usage"] for event in self.events if event.get("usage")]
        return told[-1] if told else None

    @property
    def error(self) -> dict[str, Any] | None:
        """Of a whole answer or of a stream."""
        if not self.body.startswith(b"data:"):
            found: dict[str, Any] | None = self.json.get("error")
            return found
        return next((event["error"] for event in self.events if "error" in event), None)

    def check_unbroken(self) -> None:
        """A stream that looks as if one replica had made all of it."""
        assert self.status == 200
        assert self.is_ended
        assert self.error is None, self.error
        assert self.body.endswith(b"data: [DONE]\n\n")
        assert self.body.count(b"[DONE]") == 1
        assert b"headrace {" not in self.body
        assert len({(e["id"], e["created"]) for e in self.events}) == 1
        assert len(self.finish_reasons) == 1
        roles = sum("role" in c.get("delta", {}) for c in self.choices)
        assert roles == (1 if self.choices and "delta" in self.choices[0] else 0)


class InProcessGateway:
    """A gateway over these replicas, and what it holds."""

    def __init__(self, config: FleetConfig, file: Path = Path("fleet.yaml")) -> None:
        self.gateway = Gateway(file, config, SystemClock())
        self.registry = self.gateway.parts.registry
        self.service = self.gateway.parts.service

    def call(
        self,
        path: str = CHAT,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        method: str = "POST",
        query: bytes = b"",
        **fields: Any,
    ) -> ClientCall:
        """Begin a request."""
        given = {"messages": [{"role": "user", "content": "a question"}]}
        if path == COMPLETIONS:
            given = {"prompt": "a question"}
        raw = msgspec.json.encode({**given, **fields}) if body is None else body
        return ClientCall(self.gateway, path, raw, headers or {}, method, query)

    async def ask(self, path: str = CHAT, **fields: Any) -> ClientCall:
        """A request and its whole answer."""
        return await self.call(path, **fields).end()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await until(condition, what)

    async def ready(self, count: int) -> None:
        """Until so many replicas can be used."""
        await until(
            lambda: sum(r.ready_since is not None for r in self.registry) == count,
            f"{count} replicas are ready",
        )

    async def check_idle(self) -> None:
        """Nothing is counted any more, wherever it could be."""
        registry, admission = self.registry, self.gateway.parts.admission
        everyone = [*registry, *registry._leaving]
        await until(lambda: self.service._num_open == 0, "no request is open")
        for replica in everyone:
            load = replica.load
            assert load.is_idle, (load.num_requests, load.prefill_tokens, load.decode_tokens)
        assert (admission.num_running, admission.waiting.num_requests) == (0, 0)
        assert self.service._bodies.num_bytes == 0
        names = sorted(task.get_name() for task in asyncio.all_tasks())
        ours = [name for name in names if name.startswith(("probe", "discovery"))]
        assert len(ours) == len(registry) + 1, names


async def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not after {seconds:g} s: {what}"
        await asyncio.sleep(0.005)


def spec_of(replica: FakeReplica, **options: Any) -> ReplicaSpec:
    """As headrace with a peer token where it has one, else as another server that goes on by text."""
    if replica.peer_token is None:
        return ReplicaSpec(url=replica.url, dialect=Dialect.HEADRACE, **options)
    return ReplicaSpec(url=replica.url, peer_token=Secret(replica.peer_token), **options)


def quick(
    specs: Sequence[ReplicaSpec],
    *,
    timeouts: TimeoutConfig | None = None,
    retries: RetryConfig | None = None,
    health: HealthConfig | None = None,
    **fields: Any,
) -> FleetConfig:
    """A configuration whose waits are short."""
    gateway = GatewayConfig(
        timeouts=timeouts
        or TimeoutConfig(
            connect=PATIENCE, first_token=PATIENCE, between_tokens=PATIENCE, total=PATIENCE
        ),
        retries=retries or RetryConfig(backoff=0.001, patience=5.0),
        chars_per_token=4.0,
    )
    return FleetConfig(
        gateway=gateway,
        replicas=tuple(specs),
        health=health
        or HealthConfig(
            probe_period=0.02, probe_timeout=PATIENCE, breaker_open=0.2, slow_start=0.0
        ),
        **{"routing": RoutingConfig(policy=RoutingPolicy.ROUND_ROBIN), **fields},
    )


@contextlib.asynccontextmanager
async def gateway_over(
    fakes: Sequence[FakeReplica], config: FleetConfig | None = None
) -> AsyncIterator[InProcessGateway]:
    """Run a gateway; at the end nothing of it is left, in it or at the replicas."""
    made = InProcessGateway(config or quick([spec_of(fake) for fake in fakes]))
    await made.gateway.start()
    try:
        await made.ready(len(fakes))
        yield made
        await made.check_idle()
    finally:
        await made.gateway.close()
    await until(lambda: all(f.num_connections == 0 for f in fakes), "connections are closed")
