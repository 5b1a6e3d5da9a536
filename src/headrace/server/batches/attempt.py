"""One request of a batch: from its line to the line of the output."""

import asyncio
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from headrace.api.batches import LineFault, LineResponse, OutputLine
from headrace.server.batches.lines import Place, read_line
from headrace.server.batches.results import request_id
from headrace.server.inner import InnerAnswer, InnerRequest
from headrace.web.asgi import App
from headrace.web.keys import Key

#: Answers that say nothing of the request: it is tried again for as long as the batch lasts.
_NOT_NOW: Final = (429, 503)
#: Answers that may be the request's fault or not: it is tried as often as this.
_MAYBE: Final = (408, 500)
MAX_TRIES: Final = 3
MAX_REST: Final = 5.0


class Outcome(Struct, frozen=True):
    """What came of an attempt."""

    line: bytes = b""
    is_ok: bool = False
    rest: float | None = None
    """It was none: try again, after these seconds."""


async def attempt(
    app: App, path: Path, endpoint: str, batch_id: str, place: Place, key: Key | None, *, tries: int
) -> Outcome:
    """Have a request answered; `tries` counts those before. Cancelling it ends the request."""
    line = await asyncio.to_thread(read_line, path, place)
    name = request_id(batch_id, place.number)
    request = InnerRequest(endpoint, bytes(line.body), key, name=name, is_background=True)
    answer = await request.whole(app)
    if answer.status in _NOT_NOW or (answer.status in _MAYBE and tries + 1 < MAX_TRIES):
        return Outcome(rest=_rest(answer))
    response = LineResponse(
        status_code=answer.status, request_id=name, body=msgspec.Raw(answer.body)
    )
    made = OutputLine(id=name, custom_id=line.custom_id, response=response)
    return Outcome(msgspec.json.encode(made), 200 <= answer.status < 300)


def without_room(path: Path, batch_id: str, place: Place) -> bytes:
    """The line of a request whose answer is too much for the directory."""
    fault = LineFault(code="storage_full", message="There was no room for the answer.")
    return msgspec.json.encode(
        OutputLine(
            id=request_id(batch_id, place.number),
            custom_id=read_line(path, place).custom_id,
            error=fault,
        )
    )


def _rest(answer: InnerAnswer) -> float:
    given = answer.headers.get("retry-after", "1")
    return min(MAX_REST, float(given) if given.isdecimal() else 1.0)
