"""Plain HTTP endpoints as tools."""

import asyncio
import codecs
import logging
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.tools import HttpMethod, HttpTool
from headrace.fleet.gateway.tools.values import Result, Tool, cut
from headrace.fleet.upstream.connection import Response
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of

#: Bytes of an answer that wait to be read: then the endpoint is not listened to.
_MAX_WAITING: Final = 64 * 1024

log = logging.getLogger("headrace.fleet.tools")


class HttpSource:
    """One endpoint."""

    def __init__(self, tool: HttpTool) -> None:
        self._tool = tool
        times = TimeoutConfig(first_token=tool.timeout, between_tokens=tool.timeout)
        self._pool = Pool(address_of(tool.url), times, max_idle=4, max_buffer=_MAX_WAITING)

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
        """Its answer's text, of which no more is read than a model gets; a status of 400 or more is an error."""
        try:
            async with asyncio.timeout(self._tool.timeout):
                status, text = await self._send(arguments)
        except TimeoutError:
            self._warn(f"it took more than {self._tool.timeout:g} s")
            return Result(f"The tool took more than {self._tool.timeout:g} s.", True)
        except UpstreamError as error:
            self._warn(str(error))
            return Result(
                f"The tool failed: {error.kind}.", True
            )  # where it is is no affair of a model's
        if status >= 400:
            self._warn(f"status {status}")
            return Result(f"The tool answered with status {status}: {text}", True)
        return Result(text)

    async def close(self) -> None:
        """Close what is idle."""
        self._pool.close()

    def _warn(self, why: str) -> None:
        """For the operator. A password in its address is for nobody."""
        place = address_of(self._tool.url).authority
        log.warning("The tool %s at %s failed: %s", self._tool.name, place, why)

    async def _send(self, arguments: dict[str, Any]) -> tuple[int, str]:
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
            return response.status, await _beginning(response, self._tool.max_result)
        finally:
            self._pool.release(response)  # and closes it, unless all was read


async def _beginning(response: Response, max_bytes: int) -> str:
    """The text of an answer, cut. It stops reading there, however much would follow, and however long that would take."""
    data = bytearray()
    while len(data) <= max_bytes and (part := await response.read()):
        data += part
    is_whole = len(data) <= max_bytes
    # What was cut through the middle of a character loses that.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data[:max_bytes], is_whole)
    return cut(text, max_bytes, 0 if is_whole else _num_more(response, max_bytes))


def _num_more(response: Response, num_read: int) -> int | None:
    """Bytes behind those that were read, if it has said how long it is."""
    length = response.headers.get(b"content-length", b"")
    return int(length) - num_read if length.isdigit() and len(length) < 16 else None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
