"""Chat messages as templates expect them: plain dicts, content as text."""

import json
from typing import Any

import msgspec

from headrace.api.chat import ChatMessage, ContentPart, FunctionCall, RefusalPart, TextPart
from headrace.core.errors import BadRequestError


def plain_messages(
    messages: list[ChatMessage], *, knows_developer: bool, text_arguments: bool = False
) -> list[dict[str, Any]]:
    """Each message as a dict without its empty fields.

    Text parts are joined with line breaks. Absent content is an empty text, because templates add it to
    other text. A developer message is a system message for templates that do not know the newer name.
    Calls and results in the form from before there were tools become those of today; a result has the name
    of its function where its call tells it. Arguments are objects, or JSON text with `text_arguments`.
    Raises BadRequestError for a content part that is not text.
    """
    if not messages:
        raise BadRequestError("'messages' must hold at least one message.", param="messages")
    names: dict[str, str] = {}
    plain = []
    for place, message in enumerate(messages):
        names |= {call.id: call.function.name for call in message.tool_calls or () if call.id}
        plain.append(_plain(message, place, knows_developer, text_arguments))
        name = names.get(message.tool_call_id or "")
        if name is not None and message.role == "tool":
            plain[-1].setdefault("name", name)
    return plain


def _plain(
    message: ChatMessage, place: int, knows_developer: bool, text_arguments: bool
) -> dict[str, Any]:
    role: str = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    elif role == "function":
        role = "tool"
    plain: dict[str, Any] = {"role": role, "content": _text(message.content, place)}
    if not plain["content"] and message.refusal:
        plain["content"] = message.refusal
    for field in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, field)
        if value is not None:
            plain[field] = value
    calls = [
        _plain_call(call.function, call.id, text_arguments) for call in message.tool_calls or ()
    ]
    if message.function_call is not None:
        calls.append(_plain_call(message.function_call, None, text_arguments))
    if calls:
        plain["tool_calls"] = calls
    return plain


def _text(content: str | list[ContentPart] | None, place: int) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for number, part in enumerate(content):
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, RefusalPart):
            texts.append(part.refusal)
        else:
            param = f"messages[{place}].content[{number}]"
            raise BadRequestError(
                f"This model reads text only; '{param}' is of another type.",
                param=param,
                code="unsupported_content",
            )
    return "\n".join(texts)


def _plain_call(function: FunctionCall, call_id: str | None, as_text: bool) -> dict[str, Any]:
    arguments = _text_of(function.arguments) if as_text else _object_of(function.arguments)
    plain: dict[str, Any] = {
        "type": "function",
        "function": {"name": function.name, "arguments": arguments},
    }
    if call_id is not None:
        plain["id"] = call_id
    return plain


def _text_of(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, str):
        return arguments or "{}"
    return json.dumps(arguments or {}, ensure_ascii=False)


def _object_of(arguments: str | dict[str, Any] | None) -> Any:
    """Most templates write arguments with `tojson`; text that is no JSON object stays as it is."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
