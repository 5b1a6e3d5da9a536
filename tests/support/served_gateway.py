"""A gateway in the test's event loop behind a real socket, for clients that are programs of their own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import SystemClock
from headrace.fleet.gateway.run import Gateway


@contextlib.asynccontextmanager
async def served(
    config: FleetConfig, file: Path = Path("fleet.yaml")
) -> AsyncIterator[tuple[Gateway, str]]:
    """The gateway and its address, until the block ends."""
    gateway = Gateway(file, config, SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await gateway.start()
        serving = asyncio.create_task(gateway._http.serve(sockets=[listener]))
        try:
            yield gateway, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            gateway._http.should_exit = gateway._http.force_exit = True
            await serving
            await gateway.close()
