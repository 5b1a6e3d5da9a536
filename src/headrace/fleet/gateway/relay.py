"""Bytes of a stream from a replica to a client: passed on as they are, event by event, with as little reading as can be.

Looked into are comment lines of headrace replicas (token ids, see `docs/guides/gateway-interface.md`), which are
taken out; the first event, for the answer's name; and events that hold usage, an end or an error. Only whole events
are passed on, so that an answer can be gone on with after any of them.
"""

import re
from collections.abc import Set
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.fleet.backends import reading
from headrace.fleet.gateway.inside import failure_of
from headrace.fleet.gateway.progress import Progress, usage_of, usage_over_all
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: One event may be as large as this.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_MARK: Final = b": headrace {"
_JSON: Final = len(_MARK) - 1
_COMMENT: Final = re.compile(
    rb"^: headrace (\{[^\n]*\})\n(?:\n(?=\n|:|data:|event:|\Z))?", re.MULTILINE
)
#: Ends, usage, errors, the end marker and what has no name: events that hold one of them are read. The first three begin with a
#: literal, for which `re` looks ten times as fast; the last is asked only where one of its words stands.
_FINISH: Final = re.compile(rb'"finish_reason":\s*"')
_USAGE: Final = re.compile(rb'"usage":\s*\{')
_NAMELESS: Final = re.compile(rb'"id":\s*""')
_NEWS: Final = re.compile(
    rb'"object":\s*"error"'
    rb'|^data:\s*(?:\{\s*"error"|\[DONE\])'
    rb'|(?:^event: ?|"type":\s*")(?:error|message_stop|response\.(?:completed|failed|incomplete))\b',
    re.MULTILINE,
)
#: APIs that name their events: what one is called, and what says that it is a piece of text.
_NAME: Final = re.compile(rb"^event: ?(\S+)", re.MULTILINE)
_PIECE: Final = b"delta\ndata:"
#: What a replica that was asked for usage puts into events that have none.
_NO_USAGE: Final = b',"usage":null}\n\n'


#: Chunks without a name and a choice at the beginning of a stream that are held back; further ones are passed on.
_MAX_HELD: Final = 8
#: Fields of such a chunk that say nothing.
_EMPTY: Final = frozenset({"id", "created", "model", "object", "choices", "usage"})

#: The end of OpenAI's older streams.
DONE_MARK: Final = "[DONE]"


class _Tokens(Struct):
    index: int
    token_ids: list[int]


#: The line of JSON in an event; the space is optional.
_DATA: Final = re.compile(rb"^data: ?(.*)$", re.MULTILINE)
_TOKENS: Final = msgspec.json.Decoder(_Tokens)
_CHUNK: Final = msgspec.json.Decoder(dict[str, Any])


class EventCutter:
    """Cuts a byte stream behind whole events. Lines may end with LF, CR or both; they leave with LF."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        """All events that are complete now, with their comment lines. Raises UpstreamError for an endless one."""
        if not self._parts and data.endswith(b"\n\n") and b"\r" not in data:
            return data  # whole events, as nearly all come
        self._size += len(data)
        if b"\n" in data or b"\r" in data:
            data = b"".join((*self._parts, data))
            held = b""
            if b"\r" in data:  # JSON has none inside of it
                held = b"\r" if data.endswith(b"\r") else b""  # is there a line feed behind it?
                data = data.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            end = data.rfind(b"\n\n") + 2
            events, rest = (data[:end], data[end:] + held) if end > 1 else (b"", data + held)
            self._parts = [rest] if rest else []
            self._size = len(rest)
        else:
            self._parts.append(data)
            events = b""
        if self._size > MAX_EVENT_BYTES:
            raise UpstreamError(FailureKind.GARBAGE, "an event without end")
        return events

    @property
    def tail(self) -> bytes:
        """What came of an event that is not complete."""
        return b"".join(self._parts)


class Relay:
    """One replica's part of one answer."""

    def __init__(
        self, progress: Progress, *, ends: Set[str], drops_usage: bool, is_continuation: bool
    ) -> None:
        """`ends` mark the end of a stream. `drops_usage`: usage was not asked for by the client, but by us."""
        self.progress = progress
        self._cutter = EventCutter()
        self._ends = ends
        self._is_named = bool(ends) and DONE_MARK not in ends
        self._drops_usage = drops_usage
        self._is_continuation = is_continuation
        # One that goes on by text takes what was there before for a part of its prompt.
        goes_on_by_text = is_continuation and progress.keeps_text
        self._num_before = progress.num_tokens if goes_on_by_text else 0
        self._failure: UpstreamError | None = None
        self._num_taken = progress.num_tokens
        self._held: dict[str, Any] = {}
        """What chunks said that came before the answer had a name; the first one with a choice says it too."""
        self._num_held = 0
        self.num_tokens = 0
        """Of this replica; where it does not tell, its events are counted."""

    def feed(self, data: bytes) -> bytes:
        """What the client gets of it. Raises UpstreamError for an event without end.

        If an event cannot be read, or says that the replica failed, what came before it is given, and `check` raises.
        """
        events = self._cutter.feed(data)
        if not events:
            return b""
        progress = self.progress
        is_plain = not (self._is_continuation or progress.keeps_text or progress.name is None)
        if not is_plain or _has_news(events):
            return self._edit(events)
        if _MARK in events:
            try:
                token_ids, events = _without_comments(events)
            except UpstreamError:
                return self._edit(events)  # all before the one that cannot be read
            progress.add_tokens(token_ids)
        else:
            progress.num_tokens += self._count(events)
        return events.replace(_NO_USAGE, b"}\n\n") if self._drops_usage else events

    def _count(self, events: bytes) -> int:
        """Tokens that the replica does not tell: one for each event that may have text."""
        if self._is_named:
            self.progress.num_events += events.count(b"\n\n")
            return events.count(_PIECE)
        return events.count(b"\ndata:") + events.startswith(b"data:")

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
        if (self._ends and not self.progress.is_done) or self._cutter.tail.strip():
            raise UpstreamError(FailureKind.CUT, "the answer ended without its end marker")

    def _edit(self, events: bytes) -> bytes:
        """Go through the events one by one; what each says counts only if it is passed on."""
        kept: list[bytes] = []
        for part in events.removesuffix(b"\n\n").split(b"\n\n"):
            try:
                event = self._edit_one(part.lstrip(b"\n"))
            except UpstreamError as failure:
                self._failure = failure
                break
            if event:
                kept.append(event + b"\n\n")
        return b"".join(kept)

    def _edit_one(self, event: bytes) -> bytes:
        token_ids: list[int] = []
        if _MARK in event:
            token_ids, event = _without_comments(event + b"\n")
            event = event.removesuffix(b"\n")
        edited = event
        if self._is_named and event:
            self._note_named(event, has_ids=bool(token_ids))
        elif (data := _DATA.search(event)) is None:
            pass
        elif data[1].startswith(b"{"):
            edited = self._edit_data(event, data, has_ids=bool(token_ids))
        elif data[1].strip() == b"[DONE]":
            self.progress.is_done = True
        self.progress.add_tokens(token_ids)
        return edited

    def _note_named(self, event: bytes, *, has_ids: bool) -> None:
        """An event of another API than OpenAI's older ones: it is passed on whatever it says, unless that is a failure.

        Raises UpstreamError for one that tells of a failure.
        """
        data, name = _DATA.search(event), _NAME.search(event)
        kind = self.progress.note_named(data[1]) if data is not None else ""
        kind = name[1].decode("latin-1") if name is not None else kind
        if kind == "error":
            said = data[1] if data is not None else b""
            raise failure_of(reading.table(reading.decode(said)), said)
        num_tokens = self._count(event + b"\n\n")
        if not has_ids:
            self.progress.num_tokens += num_tokens
        self.progress.is_done |= kind in self._ends

    def _edit_data(self, event: bytes, data: re.Match[bytes], *, has_ids: bool) -> bytes:
        """The event as the client gets it; empty for one that it does not get."""
        chunk, choices = _read(data[1])
        progress = self.progress
        if isinstance(usage := chunk.get("usage"), dict):
            if self._num_before:
                usage = chunk["usage"] = usage_over_all(usage, self._num_before)
            progress.usage = usage_of(usage)
            if not choices and self._drops_usage:
                return b""
        elif not choices and not chunk.get("id") and self._hold(chunk):
            return b""
        progress.note_finished(choices)
        progress.note_said(choices, has_ids=has_ids)
        is_unnamed = chunk.get("id") == ""
        if progress.name is None and not is_unnamed:
            progress.name = {key: chunk[key] for key in ("id", "created") if key in chunk}
        elif progress.name is not None and self._is_continuation and not _without_role(choices):
            return b""
        is_changed = (is_unnamed and progress.name) or self._held or self._is_continuation
        if not is_changed and not (self._drops_usage and "usage" in chunk):
            return event
        if self._drops_usage:
            chunk.pop("usage", None)
        edited = msgspec.json.encode(
            {**self._held, **chunk, **(progress.name or {}), "choices": choices}
        )
        self._held = {}
        return event[: data.start()] + b"data: " + edited + event[data.end() :]

    def _hold(self, chunk: dict[str, Any]) -> bool:
        """Whether a chunk without id and choices need not be passed on now. Azure begins with one (`prompt_filter_results`):
        https://learn.microsoft.com/azure/ai-services/openai/concepts/content-streaming. Nothing has come of the answer yet,
        so that another replica may still make it, and clients want one id.
        """
        if self._is_continuation:
            return True
        if self.progress.name is not None or self._num_held == _MAX_HELD:
            return False
        self._num_held += 1
        self._held |= {name: value for name, value in chunk.items() if name not in _EMPTY}
        return True


def _has_news(events: bytes) -> bool:
    """They may hold an end, usage, an error, or have no name."""
    if _FINISH.search(events) or _USAGE.search(events) or _NAMELESS.search(events):
        return True
    has_word = (
        b"error" in events
        or b"[DONE]" in events
        or b"message_stop" in events
        or b"response." in events
    )
    return has_word and _NEWS.search(events) is not None


def _without_comments(events: bytes) -> tuple[list[int], bytes]:
    """What comment lines tell, all of it together, and what else there is. Raises UpstreamError."""
    try:
        comment, _, event = events.partition(b"\n")
        if comment.startswith(_MARK) and event.startswith(b"data:") and _MARK not in event:
            # One line and its event, as nearly all come: half the time of the pattern.
            return _TOKENS.decode(comment[_JSON:]).token_ids, event
        parts = _COMMENT.split(events)
        told = [_TOKENS.decode(comment).token_ids for comment in parts[1::2]]
    except msgspec.DecodeError as error:
        raise UpstreamError(FailureKind.GARBAGE, f"token ids: {error}") from None
    return list(chain.from_iterable(told)), b"".join(parts[::2])


def _read(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A chunk and its choices. Raises UpstreamError for what cannot be read, and for one that tells of a failure."""
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamError(FailureKind.GARBAGE, f"an event cannot be read: {error}") from None
    choices = chunk.get("choices") or []
    has_failed = bool(chunk.get("error")) or chunk.get("object") == "error"
    for choice in choices if isinstance(choices, list) else (None,):
        if not isinstance(choice, dict):
            raise UpstreamError(FailureKind.GARBAGE, "an event cannot be read: its choices")
        has_failed = has_failed or choice.get("finish_reason") == "error"
    if has_failed:
        raise failure_of(chunk, data)
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
