"""One server of the Model Context Protocol, kept connected by a task of its own (the `mcp` package speaks it)."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from headrace.config.fleet.tools import McpServer
from headrace.core.errors import ConfigError
from headrace.fleet.gateway.tools.values import Result, Tool, cut, too_long

#: Seconds between two tries to connect: doubled up to the second number.
_RETRY: Final = (0.5, 30.0)
#: Seconds that the first request waits for a connection.
_FIRST_WAIT: Final = 10.0
#: Seconds between two looks at its tools; they also find out that it has gone.
_LOOK: Final = 15.0
#: Seconds that the package waits beyond the time of a call: our bound comes first, and costs no connection.
_LONGER: Final = 5.0
MAX_TOOLS: Final = 256
#: Bytes of one answer: so many, and so many times what a model may get of it, since JSON takes up to six bytes for one, and
#: servers say the same as text and as data.
_MAX_ANSWER: Final = 4 * 1024 * 1024
_FOR_ONE: Final = 8
#: Characters of an error that are put into the log.
_MAX_LOGGED: Final = 300
#: JSON-RPC's errors that are a tool's, and no sign of a lost connection: no such tool, bad arguments, a fault inside.
_OF_TOOLS: Final = frozenset({-32601, -32602, -32603})
#: What models' formats allow in the name of a function.
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")

log = logging.getLogger("headrace.fleet.tools")


class McpSource:
    """Its tools are listed when it is connected, when it says that they changed, and every few seconds."""

    def __init__(self, server: McpServer) -> None:
        """Raises ConfigError without the package that speaks the protocol."""
        if find_spec("mcp") is None:
            raise ConfigError("Tool servers need the extra headrace[mcp].")
        self._server = server
        self._max_bytes = _MAX_ANSWER + _FOR_ONE * server.max_result
        self._client: Any = None
        self._tools: tuple[Tool, ...] = ()
        self._looked = asyncio.Event()
        self._lost = False
        #: It was lost, or says that its tools changed.
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=f"tools {server.name}")

    async def tools(self) -> tuple[Tool, ...]:
        """None while it is not connected; the first call waits a little for that."""
        if not self._looked.is_set():
            try:
                async with asyncio.timeout(_FIRST_WAIT):
                    await self._looked.wait()
            except TimeoutError:
                return ()
        return self._tools

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        """The text of what it gives."""
        client = self._client
        if client is None:
            return Result(f"The tool server '{self._server.name}' cannot be reached.", True)
        try:
            async with asyncio.timeout(self._server.timeout):
                found = await client.call_tool(tool.local_name, arguments)
        except TimeoutError:
            return Result(f"The tool took more than {self._server.timeout:g} s.", True)
        except Exception as error:
            log.warning("A call of %s failed: %s", tool.name, str(error)[:_MAX_LOGGED])
            log.debug("Where it failed", exc_info=True)
            if (said := too_long(self._max_bytes)) in str(error):
                return Result(f"The tool failed: {said}", True)
            if getattr(error, "code", None) not in _OF_TOOLS:
                self._lost = True
                self._news.set()
                # Where its server is, and what is wrong with that, is no affair of a model's.
                return Result("The tool failed: its server did not answer.", True)
            return Result(cut(f"The tool failed: {error}", self._server.max_result), True)
        return Result(
            cut(_text(found), self._server.max_result), bool(getattr(found, "is_error", False))
        )

    async def close(self) -> None:
        """Disconnect; a program that was started ends."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        """Connect, and again whenever the connection is lost."""
        # It takes seconds to import, and requests are being answered meanwhile.
        await asyncio.to_thread(import_module, "mcp")
        pause = _RETRY[0]
        while True:
            try:
                await self._connected()
                pause = _RETRY[0]
            except Exception as error:
                if self._client is not None:  # it was well until now
                    pause = _RETRY[0]
                said = _cause(error)[:_MAX_LOGGED]
                log.warning("The tool server %s cannot be used: %s", self._server.name, said)
                log.debug("Where it failed", exc_info=True)
            finally:
                self._client, self._tools = None, ()
                self._looked.set()
            await asyncio.sleep(pause)
            pause = min(_RETRY[1], 2 * pause)

    async def _connected(self) -> None:
        from mcp import Client

        async def hear(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                self._news.set()

        self._lost = False
        wait = self._server.timeout + _LONGER
        async with (
            self._target() as target,
            Client(target, read_timeout_seconds=wait, message_handler=hear) as client,
        ):
            while not self._lost:
                self._news.clear()
                listed = await client.list_tools(cache_mode="bypass")
                self._note(self._read(listed.tools))
                self._client = client
                self._looked.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._news.wait()

    def _note(self, tools: tuple[Tool, ...]) -> None:
        if tools != self._tools:
            log.info("Tool server %s: %d tools", self._server.name, len(tools))
        self._tools = tools

    @contextlib.asynccontextmanager
    async def _target(self) -> AsyncIterator[Any]:
        """What the package connects to."""
        server = self._server
        if server.url is None:
            from headrace.fleet.gateway.tools.mcp_stdio import program_of

            yield program_of(server, self._max_bytes)
            return
        from headrace.fleet.gateway.tools.mcp_http import open_client, transport_of

        async with open_client(server, self._max_bytes, server.timeout + _LONGER) as client:
            yield transport_of(server, client, self._max_bytes)

    def _read(self, listed: Any) -> tuple[Tool, ...]:
        """Those that may be called. Of two that models cannot tell apart it is the first."""
        found: dict[str, Tool] = {}
        for tool in listed:
            if not any(fnmatchcase(tool.name, pattern) for pattern in self._server.allow):
                continue
            name = _UNSAFE.sub("_", f"{self._server.name}__{tool.name}")[:64]
            if name not in found and len(found) < MAX_TOOLS:
                found[name] = Tool(
                    name=name,
                    description=tool.description or "",
                    parameters=tool.input_schema or {"type": "object", "properties": {}},
                    source=self._server.name,
                    local_name=tool.name,
                )
        return tuple(found.values())


def _cause(error: BaseException) -> str:
    """What is at the bottom of it: the package's groups of tasks say only that something failed."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _text(found: Any) -> str:
    """The texts of a result; of other parts their kind."""
    parts = []
    for part in getattr(found, "content", None) or ():
        text = getattr(part, "text", None)
        parts.append(text if isinstance(text, str) else f"[{getattr(part, 'type', 'data')}]")
    return "\n".join(parts)
