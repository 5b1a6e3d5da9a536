"""Spans as values, and the context that crosses processes."""

import re
from enum import IntEnum

from msgspec import Struct

#: W3C Trace Context, level 1: version, trace id, parent id, flags. https://www.w3.org/TR/trace-context/
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1

Attribute = str | int | float | bool | list[str]


class SpanKind(IntEnum):
    """OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class TraceContext(Struct, frozen=True):
    """Who called, in hexadecimal."""

    trace_id: str
    """32 digits."""
    span_id: str
    """16 digits."""
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """As a header."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


class Span(Struct, frozen=True, kw_only=True):
    """Something that took time. Attributes never hold text of prompts or answers."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: it is the first of its trace."""
    start: float
    """`Clock.wall`."""
    end: float
    kind: SpanKind = SpanKind.INTERNAL
    attributes: dict[str, Attribute] = {}
    error: str = ""
    """Why it failed, in a word."""


def read_traceparent(text: str) -> TraceContext | None:
    """None for what is no context: it is as if there were none."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    is_wrong = (
        version == "ff"
        or (version == "00" and more)
        or not (int(trace_id, 16) and int(span_id, 16))
    )
    if is_wrong:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
