"""All tools of a gateway: who may use which, and calling them with their bounds."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from headrace.config.fleet.tools import ToolsConfig
from headrace.core.clock import Clock
from headrace.fleet.gateway.tools.http_source import HttpSource
from headrace.fleet.gateway.tools.mcp_source import McpSource
from headrace.fleet.gateway.tools.values import Result, Source, Tool
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics

#: Kinds of entries in `tools` that name tools of the gateway: OpenAI's word for servers, and ours for endpoints.
MCP, GATEWAY = "mcp", "gateway"
ASKING = (MCP, GATEWAY)

log = logging.getLogger("headrace.fleet.tools")


class Toolbox:
    """One gateway's. Sources are opened when it starts."""

    def __init__(self, config: ToolsConfig, metrics: Metrics, clock: Clock) -> None:
        self.config = config
        self._metrics = metrics
        self._clock = clock
        self._sources: dict[str, Source] = {}

    def start(self) -> None:
        """Connect to every server; call it on the event loop. Raises ConfigError."""
        for server in self.config.servers:
            self._sources[server.name] = McpSource(server)
        for tool in self.config.http:
            self._sources[tool.name] = HttpSource(tool)

    async def close(self) -> None:
        """Let go of all."""
        await asyncio.gather(*(source.close() for source in self._sources.values()))

    def may_have(self, tools: object) -> bool:
        """A request with this field may have something to call; most have not, and that is cheap to say."""
        return bool(self.config.offers) or (
            isinstance(tools, list)
            and any(isinstance(tool, dict) and tool.get("type") in ASKING for tool in tools)
        )

    def knows(self, source: str) -> bool:
        """There is a server or endpoint of this name."""
        return source in self._sources

    async def all(self, tenant: str) -> tuple[Tool, ...]:
        """Tools that a tenant may use now."""
        found = await asyncio.gather(*(source.tools() for source in self._sources.values()))
        return tuple(tool for tools in found for tool in tools if self._may_use(tenant, tool))

    def offered(self, model: str, tools: Iterable[Tool]) -> list[Tool]:
        """Those that requests for a model get unasked."""
        patterns = [
            pattern
            for offer in self.config.offers
            if any(fnmatchcase(model, name) for name in offer.models)
            for pattern in offer.tools
        ]
        return [tool for tool in tools if any(fnmatchcase(tool.name, p) for p in patterns)]

    async def call_all(self, calls: Sequence[tuple[Tool, str]], request_id: str) -> list[Result]:
        """Call tools with their arguments as JSON text, a few at once; a result for each, in order."""
        gate = asyncio.Semaphore(self.config.parallel)

        async def one(tool: Tool, arguments: str) -> Result:
            async with gate:
                return await self._call(tool, arguments, request_id)

        return list(await asyncio.gather(*(one(tool, text) for tool, text in calls)))

    async def _call(self, tool: Tool, text: str, request_id: str) -> Result:
        started = self._clock.monotonic()
        try:
            arguments: Any = msgspec.json.decode(text or "{}")
        except msgspec.DecodeError as error:
            return Result(f"The arguments are not JSON: {error}", True)
        if not isinstance(arguments, dict):
            return Result("The arguments must be a JSON object.", True)
        result = await self._sources[tool.source].call(tool, arguments)
        seconds = self._clock.monotonic() - started
        outcome = "error" if result.is_error else "ok"
        self._metrics.add(catalogue.TOOL_CALLS, (tool.source, outcome))
        self._metrics.histogram(catalogue.TOOL_TIME, (tool.source,)).observe(seconds)
        fields = {"tool": tool.name, "outcome": outcome, "seconds": f"{seconds:.3f}"}
        log.info("Tool call of %s", request_id, extra={"fields": fields})
        return result

    def _may_use(self, tenant: str, tool: Tool) -> bool:
        grants = [
            grant
            for grant in self.config.grants
            if any(fnmatchcase(tool.name, pattern) for pattern in grant.tools)
        ]
        return not grants or any(tenant in grant.tenants for grant in grants)
