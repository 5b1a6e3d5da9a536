"""Tools for a chat template that knows none: said in a system message, calls and results as text.

The words are documented in `docs/guides/tool-calling.md`. Results of calls become user messages, because such
templates know no other role, and those that follow each other become one, because many want turns to alternate.
"""

from typing import Any, Final

import msgspec

from headrace.config.server import ToolFormat
from headrace.preprocess.tools.frames import FRAMES, Frame
from headrace.preprocess.tools.offer import Offer

_INTRODUCTION: Final = "You can call functions to help the user. These are the functions:"
_RULES: Final = (
    "Use only functions of this list, with arguments that fulfil their schema. Call a function only "
    "where it helps; otherwise answer as usual. What a call gave comes back between <tool_response> "
    "and </tool_response>."
)
_ONE_AT_A_TIME: Final = " Make one call at a time."


def show_tools(
    messages: list[dict[str, Any]], offer: Offer | None, kind: ToolFormat, *, takes_system: bool
) -> list[dict[str, Any]]:
    """The same conversation in words that any template writes out."""
    frame = FRAMES[kind]
    shown = _merge([_shown(message, frame) for message in messages])
    if offer is None:
        return shown
    words = describe(offer, frame)
    first = shown[0] if shown else None
    if first is not None and first["role"] == "system":
        return [{**first, "content": _with_words(first["content"], words)}, *shown[1:]]
    if takes_system:
        return [{"role": "system", "content": words}, *shown]
    if first is not None and first["role"] == "user":
        return [{**first, "content": f"{words}\n\n{first['content']}"}, *shown[1:]]
    return [{"role": "user", "content": words}, *shown]


def describe(offer: Offer, frame: Frame) -> str:
    """The system text: the functions, one a line as JSON, and how to call one."""
    lines = [msgspec.json.encode(tool.plain["function"]).decode() for tool in offer.tools]
    example = f"{frame.opening}{frame.begin('NAME')}{{ARGUMENTS}}{frame.tail}{frame.closing}"
    rules = _RULES + (_ONE_AT_A_TIME if offer.max_calls == 1 else "")
    return "\n".join(
        [
            _INTRODUCTION,
            "<tools>",
            *lines,
            "</tools>",
            "To call a function, answer with its name and its arguments as JSON, in this form and with "
            "nothing else:",
            example,
            rules,
        ]
    )


def _with_words(content: str, words: str) -> str:
    return f"{content}\n\n{words}" if content else words


def _shown(message: dict[str, Any], frame: Frame) -> dict[str, Any]:
    if message["role"] in ("tool", "function"):
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text, "is_result": True}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = frame.between.join(
        frame.begin(call["function"]["name"]) + _arguments(call) + frame.tail for call in calls
    )
    said = message["content"]
    text = frame.opening + written + frame.closing
    return {"role": message["role"], "content": f"{said}\n{text}" if said else text}


def _arguments(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _merge(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that follow each other, and a question right behind them, in one user message."""
    merged: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        is_result = bool(message.get("is_result"))
        message = {key: value for key, value in message.items() if key != "is_result"}
        if was_result and message["role"] == "user":
            last = merged[-1]
            merged[-1] = {**last, "content": f"{last['content']}\n{message['content']}"}
        else:
            merged.append(message)
        was_result = (was_result and message["role"] == "user") or is_result
    return merged
