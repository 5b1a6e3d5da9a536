"""Server-sent events: framing, the end of a stream, and noticing that the client has gone.

A stream is `data: {json}` events, exactly one of them the finish of each choice, and the API's end marker
(OpenAI's is `data: [DONE]`), on every path. A choice that fails has the finish reason "error"; one event with an error object then
stands before the marker, after the ends of all choices. For trusted peers there are comment lines, before the
event that shows the tokens' text, or alone where that is held back:

    : headrace {"index":0,"token_ids":[9906,11]}
    data: {"id": ...}

`index` is the choice, `token_ids` are all tokens since the choice's last such line. Clients that know
nothing of it ignore comments, as the standard says.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headrace.web.asgi import Receive, Send, start_message

CONTENT_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
#: Ends a comment that no event follows.
NO_EVENT = b"\n"
#: Proxies must pass events on as they come.
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
#: NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR as JSON escapes.
_UNICODE_BREAKS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")


def event(data: bytes) -> bytes:
    """One event of one line of JSON.

    Only CR and LF end a line of a stream, but clients that split decoded text at every Unicode line break
    (httpx's `iter_lines` does) would tear an event apart, so those leave as escapes.
    """
    if not data.isascii():
        for raw, escape in _UNICODE_BREAKS:
            data = data.replace(raw, escape)
    return b"data: " + data + b"\n\n"


def named_event(data: bytes) -> bytes:
    """One event that is called what its first field, `type`, says: Anthropic's events and OpenAI's of responses."""
    name = data[len(b'{"type":"') : data.index(b'"', len(b'{"type":"'))]
    return b"event: " + name + b"\n" + event(data)


class Framing(Struct, frozen=True):
    """How one API frames its events."""

    event: Callable[[bytes], bytes]
    end: bytes
    """What stands after the last event; may be nothing."""


PLAIN: Final = Framing(event, DONE)


def token_comment(choice: int, token_ids: Sequence[int]) -> bytes:
    """The line for trusted peers."""
    fields = {"index": choice, "token_ids": token_ids}
    return b": headrace " + msgspec.json.encode(fields) + b"\n"


class EventStreamWriter:
    """Writes one response. The status goes out with the first event: until then it may be another."""

    def __init__(self, send: Send, headers: dict[str, str], end: bytes = DONE) -> None:
        """`end` is the end marker."""
        self._send = send
        self._end = end
        self._headers = headers
        self.has_begun = False

    async def write(self, data: bytes) -> None:
        """Send events that are already framed."""
        if not self.has_begun:
            self.has_begun = True
            await self._send(start_message(200, CONTENT_TYPE, _HEADERS, self._headers))
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The end marker and the end of the response."""
        await self.write(self._end)
        await self._send({"type": "http.response.body", "body": b""})


async def watch_disconnect(receive: Receive, on_gone: Callable[[], None]) -> None:
    """Call `on_gone` when the client leaves. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    on_gone()
