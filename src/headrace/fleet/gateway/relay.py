"""Bytes of a stream from a replica to a client: passed on as they are, event by event, with as little reading as can be.

Looked into are comment lines of headrace replicas (token ids, see `docs/guides/gateway-interface.md`), which are
taken out; the first event, for the answer's name; and events that hold usage, an end or an error. Only whole events
are passed on, so that an answer can be gone on with after any of them.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: One event may be as large as this.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_COMMENT: Final = re.compile(
    rb"^: headrace (\{[^\n]*\})\n(?:\n(?=\n|:|data:|event:|\Z))?", re.MULTILINE
)
#: Ends, usage, errors and the end marker: events that hold one of them are read.
_NEWS: Final = re.compile(
    rb'"finish_reason":\s*"|"usage":\s*\{|^data:\s*(?:\{"error"|\[DONE\])|^event: message_stop',
    re.MULTILINE,
)


class _Tokens(Struct):
    index: int
    token_ids: list[int]


_TOKENS: Final = msgspec.json.Decoder(_Tokens)


class Usage(Struct, frozen=True):
    """What an answer cost."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Progress:
    """What a client has of its answer so far, over all replicas that worked on it."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        """Of the only choice; from headrace replicas alone."""
        self.num_events = 0
        """Passed on."""
        self.name: dict[str, Any] | None = None
        """`id` and `created` of the first event: all later ones carry the same."""
        self.has_role = False
        self.has_finished = False
        """The finish reason was passed on."""
        self.is_done = False
        """The end marker was passed on."""
        self.usage: Usage | None = None
        self.num_tokens = 0
        """Output tokens, as far as they can be told before the usage comes."""


class EventCutter:
    """Cuts a byte stream behind whole events."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """All events that are complete now, with their comment lines. Raises UpstreamError for an endless one."""
        if b"\r" in data:  # some servers end lines with both; JSON has neither
            data = data.replace(b"\r\n", b"\n")
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
        """`end` marks the end of a stream. `drops_usage`: the usage event is ours, not the client's."""
        self._progress = progress
        self._cutter = EventCutter()
        self._end = end
        self._drops_usage = drops_usage
        self._is_continuation = is_continuation
        self._failure: UpstreamError | None = None
        self.num_new = 0
        """Pieces with events of this replica."""

    def feed(self, data: bytes) -> bytes:
        """What the client gets of it. Raises UpstreamError for what cannot be read.

        If the replica says that it failed, what came before that is given, and `check` raises.
        """
        events = self._cutter.feed(data)
        if not events:
            return b""
        self.num_new += 1
        if self._is_continuation or self._progress.name is None or _NEWS.search(events):
            return self._edit(events)
        self._progress.num_events += 1
        return _COMMENT.sub(self._take_tokens, events) if b": headrace " in events else events

    def check(self) -> None:
        """Raises UpstreamError if the replica has said that it failed."""
        if self._failure is not None:
            raise self._failure

    def check_end(self) -> None:
        """The body has ended. Raises UpstreamError if the answer has not."""
        if (self._end and not self._progress.is_done) or self._cutter.tail.strip():
            raise UpstreamError(FailureKind.CUT, "the answer ended without its end marker")

    def _take_tokens(self, match: re.Match[bytes]) -> bytes:
        try:
            tokens = _TOKENS.decode(match[1])
        except msgspec.DecodeError as error:
            raise UpstreamError(FailureKind.GARBAGE, f"token ids: {error}") from None
        self._progress.token_ids += tokens.token_ids
        self._progress.num_tokens += len(tokens.token_ids)
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
        self._progress.num_events += len(kept)
        return b"".join(event + b"\n\n" for event in kept)

    def _edit_one(self, event: bytes) -> bytes | None:
        comment = b""
        if event.startswith(b": headrace "):
            comment, _, event = event.partition(b"\n")
        edited = self._edit_data(event) if event.startswith(b"data: {") else event
        if comment:
            _COMMENT.sub(self._take_tokens, comment + b"\n")
        if self._end and self._end in event:
            self._progress.is_done = True
        return edited

    def _edit_data(self, event: bytes) -> bytes | None:
        try:
            chunk: dict[str, Any] = msgspec.json.decode(event[6:], type=dict)
            choices = msgspec.convert(chunk.get("choices") or [], list[dict[str, Any]])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise UpstreamError(FailureKind.GARBAGE, f"an event cannot be read: {error}") from None
        if chunk.get("error") or any(c.get("finish_reason") == "error" for c in choices):
            raise UpstreamError(FailureKind.STATUS, str(chunk.get("error"))[:200])
        progress = self._progress
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            progress.usage = usage_of(usage)
            if not choices and self._drops_usage:
                return None
        if any(choice.get("finish_reason") for choice in choices):
            progress.has_finished = True
        if progress.name is None:
            progress.name = {key: chunk[key] for key in ("id", "created") if key in chunk}
        if not self._is_continuation:
            return event
        if not _without_role(choices, progress):
            return None
        return b"data: " + msgspec.json.encode({**chunk, **progress.name})


def usage_of(usage: dict[str, Any]) -> Usage:
    """OpenAI's usage object, of any of its APIs; what is not told is 0."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        cached_tokens=_count(
            details.get("cached_tokens", usage.get("cache_read_input_tokens"))
            if isinstance(details, dict)
            else 0
        ),
        output_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _without_role(choices: list[dict[str, Any]], progress: Progress) -> bool:
    """Take the role out of a continuation's first event, which the client has; False if nothing else was in it."""
    if not progress.num_events:
        return True
    for choice in choices:
        delta = choice.get("delta")
        if isinstance(delta, dict) and "role" in delta:
            del delta["role"]
            if not any(delta.values()) and not choice.get("finish_reason"):
                return False
    return True
