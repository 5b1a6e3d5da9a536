"""`GET /timeline`: the engines' last steps as a file for Perfetto."""

from typing import Any
from urllib.parse import parse_qs

from msgspec import Struct

from headrace.core.errors import BadRequestError
from headrace.server.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Operation


class TraceFile(Struct, rename="camel"):
    """Chrome's trace event format, the JSON object form."""

    display_time_unit: str
    trace_events: list[dict[str, Any]]


TIMELINE = Operation(
    summary="The last steps of every engine, as a trace for Perfetto or Chrome",
    tag="operate",
    description="Steps with their parts, and sequences as tracks; names and numbers, no text.",
    response=TraceFile,
    query={
        "steps": {
            "type": "integer",
            "minimum": 1,
            "description": "the last so many; default all kept",
        }
    },
)


def timeline(replica: Replica) -> App:
    """Needs a key, where there are keys, also when metrics are open."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        most = replica.config.timeline_steps
        num_steps = min(most, _num_steps(scope["query_string"], most))
        events = [
            event
            for number, model in enumerate(replica.models.values(), 1)
            for event in model.timeline.events(number, _name(model.names), num_steps)
        ]
        await send_json(send, TraceFile(display_time_unit="ms", trace_events=events))

    return respond


def _name(names: tuple[str, ...]) -> str:
    return names[0] if names else "engine"


def _num_steps(query: bytes, default: int) -> int:
    given = parse_qs(query.decode("latin-1")).get("steps")
    if given is None:
        return default
    if not (
        given[-1].isdecimal() and given[-1].isascii() and 0 < len(given[-1]) < 10 and int(given[-1])
    ):
        raise BadRequestError("'steps' must be a whole number from 1 on.", param="steps")
    return int(given[-1])
