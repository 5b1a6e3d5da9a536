"""An answer that was heard to its end: read from the bytes that were sent, kept in one form.

Only good answers become one: status 200, every choice ended by itself, by its bound or with calls. An error, a stream
without `[DONE]`, or a choice that ended with anything else is none.
"""

from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Struct

from headrace.fleet.cache.keys import TOLD
from headrace.fleet.sse import StreamError, parse

#: Reasons that a choice may end with; `error`, `timeout`, `abort`, `content_filter` and unknown ones are not kept.
GOOD_ENDS: Final = frozenset({"stop", "length", "tool_calls", "function_call"})
#: Fields of a chunk or answer that are made anew, or kept apart.
_APART: Final = frozenset({"id", "object", "choices", "usage"})


#: Fields that every chunk of a stream has; any other belongs to its own chunk, and may be long.
_EVERYWHERE: Final = frozenset({"created", "model", "system_fingerprint", "service_tier"})


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored. Either `chunks` or `whole` is set, as the answer was made."""

    path: str
    stored_at: float
    """Seconds since the Unix epoch."""
    envelope: dict[str, Any] = {}
    """What stands beside the choices, of each chunk: created, model, system_fingerprint."""
    extras: dict[int, dict[str, Any]] = {}
    """What else stands there, by the number of the chunk that has it; behind the last one: that of usage. Of an answer
    that was made whole: 0.
    """
    chunks: list[list[dict[str, Any]]] | None = None
    """The choices of each chunk of a stream."""
    whole: dict[str, Any] | None = None
    """Choices and all, without id, object and usage; of computed answers: everything."""
    usage: dict[str, Any] | None = None

    def can_tell(self, *, is_stream: bool, with_usage: bool) -> bool:
        """A stream that told no usage cannot be told whole, nor with usage."""
        if self.path not in TOLD:
            return not is_stream
        return self.usage is not None or (is_stream and not with_usage)


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    index: int = 0
    function: _Function | None = None


class _Said(Struct):
    role: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct):
    """What telling an answer again relies on."""

    index: int | None = None
    finish_reason: str | None = None
    message: _Said | None = None
    delta: _Said | None = None


#: Lists that computed answers have, of whatever route.
_COMPUTED: Final = ("data", "results", "tokens")
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Answer)
#: Bytes of the checksum before a stored answer.
_SUM: Final = 4


def pack(answer: Answer) -> bytes:
    """As it is stored, behind a checksum: no store says that it changed a byte."""
    data = _ENCODER.encode(answer)
    return crc32(data).to_bytes(_SUM, "big") + data


def unpack(stored: bytes) -> Answer | None:
    """None for what an older version, or nobody, wrote, for what has changed since, and for what cannot be told."""
    data = memoryview(stored)[_SUM:]
    if crc32(data).to_bytes(_SUM, "big") != stored[:_SUM]:
        return None
    try:
        answer = _DECODER.decode(data)
        return answer if _can_be_told(answer) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _can_be_told(answer: Answer) -> bool:
    """It has what telling relies on. Raises msgspec.ValidationError where that is of another type."""
    if answer.chunks is not None:
        choices = [one for chunk in answer.chunks for one in _checked(chunk)]
        return all(one.index is not None for one in choices)
    if answer.whole is None or answer.path not in TOLD:
        return answer.whole is not None
    return all(one.finish_reason is not None for one in _checked(answer.whole.get("choices")))


def read_answer(path: str, body: bytes, *, is_stream: bool, now: float) -> Answer | None:
    """The answer in the body that was sent with status 200; None where it must not be kept."""
    try:
        return _from_stream(path, body, now) if is_stream else _from_whole(path, body, now)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, StreamError):
        return None


def _from_whole(path: str, body: bytes, now: float) -> Answer | None:
    said = msgspec.json.decode(body)
    if not isinstance(said, dict) or "error" in said:
        return None
    if path not in TOLD:
        is_answer = (
            any(isinstance(said.get(name), list) for name in _COMPUTED) and said.get("data") != []
        )
        return Answer(path=path, stored_at=now, whole=said) if is_answer else None
    choices = said.get("choices")
    if not choices or not all(choice.finish_reason in GOOD_ENDS for choice in _checked(choices)):
        return None
    return Answer(
        path=path,
        stored_at=now,
        envelope=_envelope(said),
        extras={0: extra} if (extra := _extra(said)) else {},
        whole={"choices": choices},
        usage=_table(said.get("usage")),
    )


def _from_stream(path: str, body: bytes, now: float) -> Answer | None:
    if path not in TOLD:
        return None
    chunks: list[list[dict[str, Any]]] = []
    envelope: dict[str, Any] = {}
    extras: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] | None = None
    open_choices: dict[int, bool] = {}
    is_ended = False
    for event in parse(body):
        if event.data is None:
            continue
        if is_ended:
            return None
        if event.is_end:
            is_ended = True
            continue
        said = msgspec.json.decode(event.data)
        if not isinstance(said, dict) or "error" in said:
            return None
        envelope.update(_envelope(said))
        _add_extra(extras, len(chunks), said)
        usage = _table(said.get("usage")) or usage
        choices = said.get("choices")
        if not _follow(_checked(choices), open_choices):
            return None
        if choices:
            chunks.append(choices)
    if not is_ended or not open_choices or any(open_choices.values()):
        return None
    return Answer(
        path=path, stored_at=now, envelope=envelope, extras=extras, chunks=chunks, usage=usage
    )


def _follow(choices: list[_Choice], open_choices: dict[int, bool]) -> bool:
    for choice in choices:
        if choice.index is None:
            return False
        if choice.finish_reason is None:
            open_choices.setdefault(choice.index, True)
        elif choice.finish_reason in GOOD_ENDS:
            open_choices[choice.index] = False
        else:
            return False
    return True


def _checked(choices: Any) -> list[_Choice]:
    """Raises msgspec.ValidationError for choices that could not be told again."""
    return msgspec.convert(choices, list[_Choice])


def _envelope(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name in _EVERYWHERE}


def _extra(said: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in said.items()
        if name not in _APART and name not in _EVERYWHERE
    }


def _add_extra(extras: dict[int, dict[str, Any]], number: int, said: dict[str, Any]) -> None:
    """Of chunk `number`, or of one without choices before it, which is not told again."""
    # Null in one chunk says nothing against what another has.
    if extra := {name: value for name, value in _extra(said).items() if value is not None}:
        extras[number] = {**extras.get(number, {}), **extra}


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
