"""All tools of a gateway: who may use which, and calling them with their bounds."""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

import msgspec

from headrace.config.fleet.tools import HttpTool, McpServer, ToolsConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.fleet.gateway.tools.http_source import HttpSource
from headrace.fleet.gateway.tools.mcp_source import McpSource
from headrace.fleet.gateway.tools.values import Result, Source, Tool
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics

#: Kinds of entries in `tools` that name tools of the gateway: OpenAI's word for servers, and ours for endpoints.
MCP, GATEWAY = "mcp", "gateway"
ASKING = (MCP, GATEWAY)

log = logging.getLogger("headrace.fleet.tools")


#: Where tools come from, as configured.
Spec = McpServer | HttpTool


def open_source(spec: Spec) -> Source:
    """Connect to it. Raises ConfigError."""
    return McpSource(spec) if isinstance(spec, McpServer) else HttpSource(spec)


class _Opened:
    """A source that is let go of when nothing runs in it any more."""

    def __init__(self, spec: Spec, source: Source) -> None:
        self.spec = spec
        self.source = source
        self.num_calls = 0


class Toolbox:
    """One gateway's. Sources are opened when it starts."""

    def __init__(
        self,
        config: ToolsConfig,
        metrics: Metrics,
        clock: Clock,
        open_source: Callable[[Spec], Source] = open_source,
    ) -> None:
        self.config = config
        self._metrics = metrics
        self._clock = clock
        self._open = open_source
        self._opened: dict[str, _Opened] = {}
        #: Of an earlier configuration, with calls that still run.
        self._leaving: set[_Opened] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @staticmethod
    def check(config: ToolsConfig) -> None:
        """Raises ConfigError for what `apply` could not do."""
        if config.servers and find_spec("mcp") is None:
            raise ConfigError("Tool servers need the extra headrace[mcp].")

    def start(self) -> None:
        """Connect to every server; call it on the event loop. Raises ConfigError."""
        self.apply(self.config)

    def apply(self, config: ToolsConfig) -> None:
        """From now on. What has not changed stays connected; calls that run in what is gone end first."""
        self.check(config)
        before, self._opened = self._opened, {}
        for spec in _specs(config):  # the order in which models see tools
            known = before.get(spec.name)
            is_same = known is not None and known.spec == spec
            self._opened[spec.name] = (
                before.pop(spec.name) if is_same else _Opened(spec, self._open(spec))
            )
        for opened in before.values():
            self._leaving.add(opened)
            self._close_idle(opened)
        self.config = config

    async def close(self) -> None:
        """Let go of all."""
        sources = [opened.source for opened in (*self._opened.values(), *self._leaving)]
        self._opened, self._leaving = {}, set()
        await asyncio.gather(*(source.close() for source in sources), *self._closing)

    def may_have(self, tools: object) -> bool:
        """A request with this field may have something to call; most have not, and that is cheap to say."""
        return bool(self.config.offers) or (
            isinstance(tools, list)
            and any(isinstance(tool, dict) and tool.get("type") in ASKING for tool in tools)
        )

    def knows(self, source: str) -> bool:
        """There is a server or endpoint of this name."""
        return any(spec.name == source for spec in _specs(self.config))

    async def usable(self, tenant: str, of: Container[str] | None = None) -> tuple[Tool, ...]:
        """Tools that a tenant may use now, of these sources or of all. A source that is being connected is waited for."""
        asked = [each for name, each in self._opened.items() if of is None or name in of]
        found = await asyncio.gather(*(each.source.tools() for each in asked))
        return tuple(tool for tools in found for tool in tools if self._may_use(tenant, tool))

    async def is_there(self, source: str) -> bool:
        """It has tools now, for whomever."""
        opened = self._opened.get(source)
        return opened is not None and bool(await opened.source.tools())

    def offers(self, model: str) -> list[str]:
        """Patterns of the tools that requests for a model get unasked."""
        return [
            pattern
            for offer in self.config.offers
            if matches(model, offer.models)
            for pattern in offer.tools
        ]

    async def call_all(self, calls: Sequence[tuple[Tool, str]], request_id: str) -> list[Result]:
        """Call tools with their arguments as JSON text, a few at once; a result for each, in order."""
        gate = asyncio.Semaphore(self.config.parallel)

        async def one(tool: Tool, arguments: str) -> Result:
            async with gate:
                return await self._call(tool, arguments, request_id)

        return list(await asyncio.gather(*(one(tool, text) for tool, text in calls)))

    async def _call(self, tool: Tool, text: str, request_id: str) -> Result:
        started = self._clock.monotonic()
        result = await self._tried(tool, text)
        self._note(tool, result, started, request_id)
        return result

    async def _tried(self, tool: Tool, text: str) -> Result:
        try:
            arguments: Any = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return Result(f"The arguments are not JSON: {error}", True)
        if not isinstance(arguments, dict):
            return Result("The arguments must be a JSON object.", True)
        try:
            return await self._called(tool, arguments)
        except Exception:
            # Whatever it is, the model may go on without it, and so may the calls beside it.
            log.exception("A call of %s failed", tool.name)
            return Result("The tool failed.", True)

    def _note(self, tool: Tool, result: Result, started: float, request_id: str) -> None:
        seconds = self._clock.monotonic() - started
        outcome = "error" if result.is_error else "ok"
        self._metrics.add(catalogue.TOOL_CALLS, (tool.source, outcome))
        self._metrics.histogram(catalogue.TOOL_TIME, (tool.source,)).observe(seconds)
        fields = {"tool": tool.name, "outcome": outcome, "seconds": f"{seconds:.3f}"}
        log.info("Tool call of %s", request_id, extra={"fields": fields})

    async def _called(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        opened = self._opened.get(tool.source)
        if opened is None:
            return Result("This tool is not there any more.", True)
        opened.num_calls += 1
        try:
            return await opened.source.call(tool, arguments)
        finally:
            opened.num_calls -= 1
            self._close_idle(opened)

    def _close_idle(self, opened: _Opened) -> None:
        if opened in self._leaving and not opened.num_calls:
            self._leaving.remove(opened)
            task = asyncio.ensure_future(opened.source.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _may_use(self, tenant: str, tool: Tool) -> bool:
        grants = [grant for grant in self.config.grants if matches(tool.name, grant.tools)]
        return not grants or any(tenant in grant.tenants for grant in grants)


def _specs(config: ToolsConfig) -> Iterator[Spec]:
    yield from config.servers
    yield from config.http


def matches(name: str, patterns: Iterable[str]) -> bool:
    """One of the patterns, with * for any text, fits."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
