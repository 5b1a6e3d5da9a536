"""An answer told again: whole or as a stream, however it was made.

`id` is new, for an id names the answer to one request; `created` and the ids of tool calls are those of the first time:
`created` says when the text was made, and calls are spoken of in later turns.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.fleet.cache.answers import Answer
from headrace.fleet.cache.keys import TOLD
from headrace.web.streaming import DONE, event

_CHAT: Final = "/v1/chat/completions"
#: Parts of a message that are not told as deltas of their own name.
_MESSAGE_APART: Final = frozenset({"role", "tool_calls"})


def told_whole(answer: Answer, answer_id: str) -> bytes:
    """One JSON body."""
    if answer.path not in TOLD:
        return msgspec.json.encode(answer.whole)
    choices = (
        answer.whole["choices"]
        if answer.whole is not None
        else _merged(answer.path, answer.chunks or [])
    )
    extras = {name: value for extra in answer.extras.values() for name, value in extra.items()}
    return msgspec.json.encode({
        "id": answer_id,
        "object": "chat.completion" if answer.path == _CHAT else "text_completion",
        **answer.envelope,
        **extras,
        "choices": choices,
        "usage": answer.usage,
    })  # fmt: skip


def told_as_stream(answer: Answer, answer_id: str, *, with_usage: bool) -> list[bytes]:
    """Events, the end marker last. A whole answer comes in one piece a choice."""
    chunks = answer.chunks
    if chunks is None:
        chunks = _split(answer.path, answer.whole["choices"] if answer.whole else [])
    head = {
        "id": answer_id,
        "object": "chat.completion.chunk" if answer.path == _CHAT else "text_completion",
        **answer.envelope,
    }
    no_usage: dict[str, Any] = {"usage": None} if with_usage else {}
    extras = answer.extras
    events = [
        event(msgspec.json.encode({**head, **extras.get(number, {}), "choices": c, **no_usage}))
        for number, c in enumerate(chunks)
    ]
    if with_usage:
        last = {**head, **extras.get(len(chunks), {}), "choices": [], "usage": answer.usage}
        events.append(event(msgspec.json.encode(last)))
    return [*events, DONE]


def _merged(path: str, chunks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for choices in chunks:
        for choice in choices:
            into = found.setdefault(choice["index"], {"index": choice["index"]})
            if path == _CHAT:
                _add_delta(into, choice)
            _add(into, {k: v for k, v in choice.items() if k not in ("index", "delta")})
    if path == _CHAT:
        for choice in found.values():
            choice["message"] = _finished(choice.get("message", {}))
            choice.setdefault("logprobs", None)
    return [found[index] for index in sorted(found)]


def _add_delta(into: dict[str, Any], choice: Mapping[str, Any]) -> None:
    message = into.setdefault("message", {"role": "assistant", "content": None})
    delta = dict(choice.get("delta") or {})
    delta.pop("role", None)
    for call in delta.pop("tool_calls", None) or ():
        calls = message.setdefault("tool_calls", {})
        made = calls.setdefault(call.get("index", 0), {})
        rest = {k: v for k, v in call.items() if k not in ("index", "function")}
        made.update({k: v for k, v in rest.items() if v is not None})
        _add(made.setdefault("function", {"name": "", "arguments": ""}), call.get("function") or {})
    _add(message, delta)


def _add(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Texts and lists get longer, tables are merged, anything else is replaced; null adds nothing."""
    for name, value in more.items():
        old = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif name == "finish_reason":
            into[name] = value
        elif isinstance(old, str) and isinstance(value, str):
            into[name] = old + value
        elif isinstance(old, list) and isinstance(value, list):
            into[name] = [*old, *value]
        elif isinstance(old, dict) and isinstance(value, dict):
            merged = dict(old)
            _add(merged, value)
            into[name] = merged
        else:
            into[name] = value


def _finished(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
        message["content"] = message.get("content") or None
    return message


def _split(path: str, choices: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    chunks: list[list[dict[str, Any]]] = []
    for choice in choices:
        rest = {
            k: v for k, v in choice.items() if k not in ("message", "finish_reason", "logprobs")
        }
        index = {"index": choice.get("index", 0)}
        logprobs = choice.get("logprobs")
        if path == _CHAT:
            message = choice.get("message") or {}
            first = {"role": message.get("role", "assistant"), "content": ""}
            chunks.append([{**index, "delta": first, "logprobs": None, "finish_reason": None}])
            delta = _delta(message)
            if delta or logprobs:
                chunks.append([
                    {**index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
                ])  # fmt: skip
            rest["delta"] = {}
            logprobs = None
        chunks.append([{**rest, "logprobs": logprobs, "finish_reason": choice["finish_reason"]}])
    return chunks


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    delta = {
        name: value
        for name, value in message.items()
        if name not in _MESSAGE_APART and value not in (None, "", [])
    }
    calls = message.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    return delta
