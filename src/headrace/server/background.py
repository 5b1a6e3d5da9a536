"""Responses that are made without their client: it asks for them later."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.api.responses import Response
from headrace.server.resume import Produce
from headrace.web.asgi import Message

#: Seconds that a cancel waits for the end of what it ended.
END_PATIENCE: Final = 5.0


class _Running(NamedTuple):
    response: Response
    task: asyncio.Task[None]


class BackgroundResponses:
    """Those that run. Bounded by admission, as all requests that run are."""

    def __init__(self) -> None:
        self._running: dict[tuple[bytes, str], _Running] = {}

    def start(
        self,
        owner: bytes,
        response: Response,
        produce: Produce,
        on_error: Callable[[Exception], object],
    ) -> None:
        """Run a request to its end; what it raises goes to `on_error`."""
        key = (owner, response.id)

        async def run() -> None:
            try:
                await produce(_never, _nowhere)
            except Exception as error:  # noqa: BLE001 - told when it is asked for
                on_error(error)
            finally:
                self._running.pop(key, None)

        self._running[key] = _Running(response, asyncio.create_task(run()))

    def find(self, owner: bytes, name: str) -> Response | None:
        """A response of this owner's, as it began; None where none of that name runs."""
        found = self._running.get((owner, name))
        return None if found is None else found.response

    def forget(self, owner: bytes, name: str) -> bool:
        """Nobody will ask for it; whether it ran."""
        return self._running.pop((owner, name), None) is not None

    async def wait(self, owner: bytes, name: str) -> None:
        """Until it has ended, or for a few seconds."""
        found = self._running.get((owner, name))
        if found is not None:
            await asyncio.wait({found.task}, timeout=END_PATIENCE)


async def _never() -> Message:
    """The client does not leave: it has left."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets this future")


async def _nowhere(_message: Message) -> None:
    """The answer is stored, not sent."""
