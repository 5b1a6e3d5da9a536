"""A program that speaks the Model Context Protocol over stdin and stdout, as a transport of the `mcp` package.

The package's own has no bound on the length of a line. This one answers for a line that is too long, in the program's
place, and goes on with the next. Framing and the order of the end: https://modelcontextprotocol.io/specification, "stdio" and
"lifecycle".
"""

import asyncio
import logging
import os
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from headrace.config.fleet.tools import McpServer
from headrace.core.errors import reason_of
from headrace.fleet.gateway.tools.bounded_lines import BoundedLines, EndlessLineError, LongLine
from headrace.fleet.gateway.tools.values import too_long

#: Seconds that a program has to end when its stdin is closed, and again when it is told to.
_END: Final = 2.0
#: Seconds between two looks whether it has ended. Waiting for it would wait for all that it has started, too.
_LOOK: Final = 0.01
#: Servers write the id of an answer at its beginning or at its end. Within a text the quotes would be escaped.
_HEAD_ID: Final = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_TAIL_ID: Final = re.compile(
    rb'[,{]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)

log = logging.getLogger("headrace.fleet.tools")


@asynccontextmanager
async def program_of(server: McpServer, max_bytes: int) -> AsyncIterator[Any]:
    """Streams of messages from and to the program, which ends with the block. Raises OSError if it cannot be started.

    No message from it is longer than `max_bytes`.
    """
    own = {name: str(value) for name, value in server.env.items()}
    try:
        process = await asyncio.create_subprocess_exec(
            *server.command,
            stdin=PIPE,
            stdout=PIPE,
            # What is safe and needed of our own, and nothing else.
            env=get_default_environment() | own,
            start_new_session=True,
            limit=max_bytes,
        )
    except OSError as error:
        program = server.command[0]
        raise OSError(f"{program} cannot be started: {reason_of(error)}") from error
    heard, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, told = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.ensure_future(_hear(server.name, process, max_bytes, heard)),
        asyncio.ensure_future(_tell(process, told, heard)),
    ]
    try:
        yield incoming, outgoing
    finally:
        for task in tasks:
            task.cancel()
        for stream in (heard, incoming, outgoing, told):
            stream.close()
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)
                await _end(process)
        except BaseException:
            _signal(process, signal.SIGKILL)  # whatever happens to us, it does not stay
            raise


async def _hear(name: str, process: Process, max_bytes: int, heard: Any) -> None:
    """Until its output ends, or the session does."""
    assert process.stdout is not None
    lines = BoundedLines(process.stdout, max_bytes)
    try:
        while (line := await lines.next()) is not None:
            if isinstance(line, LongLine):
                log.warning("The tool server %s: %s", name, too_long(max_bytes))
                line = _in_its_place(line, max_bytes)
            if line:
                await heard.send(_read(line))
    except EndlessLineError:
        log.warning("The tool server %s writes a line without end", name)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
        pass  # the session is over
    finally:
        heard.close()  # which tells the session


async def _tell(process: Process, told: Any, heard: Any) -> None:
    assert process.stdin is not None
    try:
        async for message in told:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(data.encode() + b"\n")
            await process.stdin.drain()
    except (anyio.ClosedResourceError, OSError):
        pass
    finally:
        heard.close()  # it hears nothing any more, and so will answer nothing


def _read(line: bytes) -> Any:
    """A message; for what is none, the error, which the session tells."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def _in_its_place(line: LongLine, max_bytes: int) -> bytes:
    """An error for whoever waits for a line that was left out; nothing where nobody knows who that is."""
    found = _HEAD_ID.match(line.head) or _TAIL_ID.search(line.tail)
    if found is None:
        return b""
    error = ErrorData(code=INTERNAL_ERROR, message=too_long(max_bytes))
    answer = JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error)
    return str(answer.model_dump_json(by_alias=True, exclude_unset=True)).encode()


# -- its end ------------------------------------------------------------------------------------------


async def _end(process: Process) -> None:
    """Close its stdin; then tell it to end, and all that it has started; then end them."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    # What it still writes is not read by anybody; and it must not wait for that.
    rest = asyncio.ensure_future(_swallow(process.stdout))
    try:
        if not await _has_ended(process):
            _signal(process, signal.SIGTERM)
            await _has_ended(process)
            _signal(process, signal.SIGKILL)  # also what it leaves behind
            await _has_ended(process)
    finally:
        rest.cancel()
        await asyncio.gather(rest, return_exceptions=True)
        # Something that it has started may hold the pipes: they are let go of all the same.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            with suppress(PermissionError):
                transport.close()


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def _has_ended(process: Process) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _END
    while process.returncode is None:
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_LOOK)
    return True


def _signal(process: Process, number: signal.Signals) -> None:
    """To its whole group, also where it has ended itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
