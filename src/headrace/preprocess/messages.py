"""Chat messages as templates expect them: plain dicts, content as text."""

from typing import Any

import msgspec

from headrace.api.chat import ChatMessage, ContentPart, RefusalPart, TextPart, ToolCall
from headrace.core.errors import BadRequestError


def plain_messages(messages: list[ChatMessage], *, knows_developer: bool) -> list[dict[str, Any]]:
    """Each message as a dict without its empty fields.

    Text parts are joined with line breaks. Absent content is an empty text, because templates add it to
    other text. A developer message is a system message for templates that do not know the newer name.
    Raises BadRequestError for a content part that is not text.
    """
    if not messages:
        raise BadRequestError("'messages' must hold at least one message.", param="messages")
    return [_plain(message, place, knows_developer) for place, message in enumerate(messages)]


def _plain(message: ChatMessage, place: int, knows_developer: bool) -> dict[str, Any]:
    role: str = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    plain: dict[str, Any] = {"role": role, "content": _text(message.content, place)}
    if not plain["content"] and message.refusal:
        plain["content"] = message.refusal
    for field in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, field)
        if value is not None:
            plain[field] = value
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
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


def _plain_call(call: ToolCall) -> dict[str, Any]:
    """Templates write arguments with `tojson`, so JSON text becomes the object that it stands for."""
    arguments: Any = call.function.arguments
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        arguments = parsed
    function = {"name": call.function.name, "arguments": arguments}
    plain: dict[str, Any] = {"type": call.type, "function": function}
    if call.id is not None:
        plain["id"] = call.id
    return plain
