"""grpc.health.v1: SERVING is what `/readyz` says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

HEALTH: Final = "grpc.health.v1.Health"
#: Seconds between two looks for those who watch.
LOOK_PERIOD: Final = 0.25


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Of the server as a whole (an empty name) and of each of `services`."""

    def __init__(self, services: Collection[str], is_ready: Callable[[], bool]) -> None:
        """`is_ready` is cheap: every check asks."""
        self._services = frozenset({"", *services})
        self._is_ready = is_ready
        self._is_closed = False

    def close(self) -> None:
        """End those who watch: the server ends."""
        self._is_closed = True

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        """The status now."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no such service here.")
        return health_pb2.HealthCheckResponse(status=self._status())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The status now, and whenever it changes."""
        last = None
        while not self._is_closed:
            status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if request.service in self._services:
                status = self._status()
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(LOOK_PERIOD)

    def _status(self) -> Any:
        response = health_pb2.HealthCheckResponse
        return response.SERVING if self._is_ready() else response.NOT_SERVING
