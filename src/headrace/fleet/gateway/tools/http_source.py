"""Plain HTTP endpoints as tools."""

import asyncio
import logging
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.tools import HttpMethod, HttpTool
from headrace.fleet.gateway.tools.values import Result, Tool, cut
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of

#: Bytes of an answer that are read, whatever a model gets of it.
MAX_ANSWER_BYTES = 4 * 1024 * 1024

log = logging.getLogger("headrace.fleet.tools")


class HttpSource:
    """One endpoint."""

    def __init__(self, tool: HttpTool) -> None:
        self._tool = tool
        times = TimeoutConfig(first_token=tool.timeout, between_tokens=tool.timeout)
        self._pool = Pool(address_of(tool.url), times, max_idle=4, max_buffer=MAX_ANSWER_BYTES)

    async def tools(self) -> tuple[Tool, ...]:
        """The one."""
        tool = self._tool
        return (
            Tool(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                source=tool.name,
                local_name=tool.name,
            ),
        )

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        """Its answer's text; a status of 400 or more is an error."""
        try:
            async with asyncio.timeout(self._tool.timeout):
                status, answer = await self._send(arguments)
        except TimeoutError:
            return Result(f"The tool took more than {self._tool.timeout:g} s.", True)
        except UpstreamError as error:
            log.warning("The tool %s failed: %s", self._tool.name, error)
            return Result(
                f"The tool failed: {error.kind}.", True
            )  # where it is is no affair of a model's
        text = cut(answer.decode("utf-8", "replace"), self._tool.max_result)
        if status >= 400:
            return Result(f"The tool answered with status {status}: {text}", True)
        return Result(text)

    async def close(self) -> None:
        """Close what is idle."""
        self._pool.close()

    async def _send(self, arguments: dict[str, Any]) -> tuple[int, bytes]:
        parts = urlsplit(self._tool.url)
        path, query = parts.path or "/", parts.query
        body = b""
        if self._tool.method is HttpMethod.GET:
            given = urlencode({name: _plain(value) for name, value in arguments.items()})
            query = "&".join(filter(None, (query, given)))
        else:
            body = msgspec.json.encode(arguments)
        headers = {"content-type": "application/json", "accept": "*/*"}
        headers |= {name.lower(): str(value) for name, value in self._tool.headers.items()}
        response = await self._pool.request(
            str(self._tool.method), f"{path}?{query}" if query else path, headers, body
        )
        try:
            return response.status, await response.read_all(MAX_ANSWER_BYTES)
        finally:
            self._pool.release(response)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
