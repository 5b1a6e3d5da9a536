"""Real servers of tools: the official package, over stdio or Streamable HTTP, each in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import json, os, pathlib, sys
from mcp.server import MCPServer

place = pathlib.Path(sys.argv[1])
server = MCPServer("calc")
(place / f"pid-{os.getpid()}").touch()


@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers"
    return a + b


@server.tool()
def fail() -> str:
    "Always fails"
    raise ValueError("it broke")


@server.tool()
def die() -> str:
    "Ends the server"
    os._exit(3)


@server.tool()
async def slow() -> str:
    "Takes long"
    import anyio
    await anyio.sleep(60)
    return "at last"


@server.tool()
def environment() -> str:
    "What it got"
    return json.dumps(dict(os.environ))


@server.tool()
def long(size: int) -> str:
    "Much text"
    return "x" * size


@server.tool()
def learn() -> str:
    "Has one tool more from now on"
    server.add_tool(lambda: "news", name="learned", description="")
    return "done"


@server.tool(name="odd name!")
def odd() -> str:
    "A name that models cannot say"
    return "odd"


if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()
"""


def program_in(place: Path) -> tuple[str, ...]:
    """The command of a server over stdio; it leaves a file `pid-N` in `place` for each start."""
    file = place / "tool_server.py"
    file.write_text(PROGRAM)
    return sys.executable, "-W", "ignore", str(file), str(place)


def pids(place: Path) -> list[int]:
    """Of all servers that were started."""
    return sorted(int(file.name.removeprefix("pid-")) for file in place.glob("pid-*"))


@contextmanager
def http_server_in(place: Path, port: int) -> Iterator[str]:
    """A server over HTTP; its address. It ends with the block."""
    process = subprocess.Popen(
        [*program_in(place), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
