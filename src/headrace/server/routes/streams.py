"""`GET /v1/streams/{stream_id}`: go on reading a stream whose connection broke."""

from headrace.core.errors import BadRequestError
from headrace.server.replica import Replica
from headrace.server.resume import resume
from headrace.web.asgi import App, Receive, Scope, Send, header
from headrace.web.endpoint import Operation

RESUME = Operation(
    summary="Go on reading a stream",
    tag="generate",
    description=(
        "From the event after `Last-Event-ID`, or from its first one. 204 when there is nothing left; "
        "only for the API key that started it, and where `--resume-window` is set."
    ),
    content_type="text/event-stream",
    errors=(400, 404),
)


def resume_stream(replica: Replica) -> App:
    """The handler."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        stream_id = scope["path_params"]["stream_id"]
        last = header(scope, b"last-event-id") or stream_id
        named, slash, _ = last.partition("/")
        if not slash:  # a bare number, or nothing
            last = stream_id if last == stream_id else f"{stream_id}/{last}"
        elif named != stream_id:
            raise BadRequestError(
                "'Last-Event-ID' is of another stream than the path names.", param="last-event-id"
            )
        await resume(replica.streams, last, scope, receive, send)

    return respond
