"""Bytes of a stream from a replica to a client: passed on as they are, event by event, with as little reading as can be.

Looked into are comment lines of headrace replicas (token ids, see `docs/guides/gateway-interface.md`), which are
taken out; the first event, for the answer's name; and events that hold usage, an end or an error. Only whole events
are passed on, so that an answer can be gone on with after any of them.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.fleet.gateway.progress import Progress, usage_of
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: One event may be as large as this.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_MARK: Final = b": headrace "
_COMMENT: Final = re.compile(
    rb"^: headrace (\{[^\n]*\})\n(?:\n(?=\n|:|data:|event:|\Z))?", re.MULTILINE
)
#: Ends, usage, errors and the end marker: events that hold one of them are read.
_NEWS: Final = re.compile(
    rb'"finish_reason":\s*"|"usage":\s*\{|^data:\s*(?:\{"error"|\[DONE\])|^event: message_stop',
    re.MULTILINE,
)
#: What a replica that was asked for usage puts into events that have none.
_NO_USAGE: Final = b',"usage":null}\n\n'


class _Tokens(Struct):
    index: int
    token_ids: list[int]


_TOKENS: Final = msgspec.json.Decoder(_Tokens)


class EventCutter:
    """Cuts a byte stream behind whole events."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """All events that are complete now, with their comment lines. Raises UpstreamError for an endless one."""
        if b"\r" in data:  # some servers end lines with both; JSON has neither
            data = data.replace(b"\r\n", b"\n")
        if self._tail:
            data = self._tail + data
        end = data.rfind(b"\n\n")
        if end < 0:
            self._tail = data
            if len(data) > MAX_EVENT_BYTES:
                raise UpstreamError(FailureKind.GARBAGE, "an event without end")
            return b""
        self._tail = data[end + 2 :]
        return data[: end + 2]

    @property
    def tail(self) -> bytes:
        """What came of an event that is not complete."""
        return self._tail


class Relay:
    """One replica's part of one answer."""

    def __init__(
        self, progress: Progress, *, end: bytes, drops_usage: bool, is_continuation: bool
    ) -> None:
        """`end` marks the end of a stream. `drops_usage`: usage was not asked for by the client, but by us."""
        self.progress = progress
        self._cutter = EventCutter()
        self._end = end
        self._drops_usage = drops_usage
        self._is_continuation = is_continuation
        self._failure: UpstreamError | None = None
        self._num_taken = progress.num_tokens
        self.num_tokens = 0
        """Of this replica; where it does not tell, its events are counted."""

    def feed(self, data: bytes) -> bytes:
        """What the client gets of it. Raises UpstreamError for what cannot be read.

        If the replica says that it failed, what came before that is given, and `check` raises.
        """
        events = self._cutter.feed(data)
        if not events:
            return b""
        progress = self.progress
        if (
            self._is_continuation
            or progress.keeps_text
            or progress.name is None
            or _NEWS.search(events)
        ):
            return self._edit(events)
        if _MARK in events:
            events = _COMMENT.sub(self._take_tokens, events)
        else:
            progress.num_tokens += 1
        progress.num_events += 1
        return events.replace(_NO_USAGE, b"}\n\n") if self._drops_usage else events

    def take_new(self) -> int:
        """Tokens since the last call."""
        new = self.progress.num_tokens - self._num_taken
        self._num_taken = self.progress.num_tokens
        self.num_tokens += new
        return new

    def check(self) -> None:
        """Raises UpstreamError if the replica has said that it failed."""
        if self._failure is not None:
            raise self._failure

    def check_end(self) -> None:
        """The body has ended. Raises UpstreamError if the answer has not."""
        if (self._end and not self.progress.is_done) or self._cutter.tail.strip():
            raise UpstreamError(FailureKind.CUT, "the answer ended without its end marker")

    def _take_tokens(self, match: re.Match[bytes]) -> bytes:
        try:
            tokens = _TOKENS.decode(match[1])
        except msgspec.DecodeError as error:
            raise UpstreamError(FailureKind.GARBAGE, f"token ids: {error}") from None
        self.progress.token_ids += tokens.token_ids
        self.progress.num_tokens += len(tokens.token_ids)
        return b""

    def _edit(self, events: bytes) -> bytes:
        """Go through the events one by one; the tokens of each count only if it is passed on."""
        kept: list[bytes] = []
        for part in events.split(b"\n\n"):
            try:
                event = self._edit_one(part)
            except UpstreamError as failure:
                self._failure = failure
                break
            if event:
                kept.append(event)
        self.progress.num_events += len(kept)
        return b"".join(event + b"\n\n" for event in kept)

    def _edit_one(self, event: bytes) -> bytes | None:
        comments: list[bytes] = []
        while event.startswith(_MARK):
            comment, _, event = event.partition(b"\n")
            comments.append(comment + b"\n")
        edited = self._edit_data(event) if event.startswith(b"data: {") else event
        for comment in comments:
            _COMMENT.sub(self._take_tokens, comment)
        if self._end and self._end in event:
            self.progress.is_done = True
        return edited

    def _edit_data(self, event: bytes) -> bytes | None:
        chunk, choices = _read(event[6:])
        progress = self.progress
        if isinstance(usage := chunk.get("usage"), dict):
            progress.usage = usage_of(usage)
            if not choices and self._drops_usage:
                return None
        progress.has_finished |= any(choice.get("finish_reason") for choice in choices)
        if progress.keeps_text:
            progress.note_text(choices)
        if progress.name is None:
            progress.name = {key: chunk[key] for key in ("id", "created") if key in chunk}
        elif self._is_continuation and not _without_role(choices):
            return None
        if not self._is_continuation and not (self._drops_usage and "usage" in chunk):
            return event
        if self._drops_usage:
            chunk.pop("usage", None)
        return b"data: " + msgspec.json.encode({**chunk, **progress.name, "choices": choices})


def _read(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A chunk and its choices. Raises UpstreamError for what cannot be read, and for one that tells of a failure."""
    try:
        chunk: dict[str, Any] = msgspec.json.decode(data, type=dict)
        choices = msgspec.convert(chunk.get("choices") or [], list[dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UpstreamError(FailureKind.GARBAGE, f"an event cannot be read: {error}") from None
    if chunk.get("error") or any(c.get("finish_reason") == "error" for c in choices):
        raise UpstreamError(FailureKind.STATUS, str(chunk.get("error"))[:200])
    return chunk, choices


def _without_role(choices: list[dict[str, Any]]) -> bool:
    """Take the role out of a continuation's first event, which the client has; False if nothing else was in it."""
    for choice in choices:
        delta = choice.get("delta")
        if isinstance(delta, dict) and "role" in delta:
            del delta["role"]
            if not any(delta.values()) and not choice.get("finish_reason"):
                return False
    return True
