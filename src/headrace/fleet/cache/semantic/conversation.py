"""What must be equal of two requests, and what may be worded otherwise: the text of the last user turn, alone."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from headrace.fleet.cache.keys import Question, digest, normal

_CHAT = "/v1/chat/completions"


class Asked(Struct, frozen=True):
    """A request taken apart."""

    context: bytes
    """32 bytes: tenant, model, its versions, and all of the body but the text."""
    text: str


def asked(question: Question, max_chars: int, namespace: str = "") -> Asked | None:
    """None for what is not looked for by meaning: other routes, a last turn that is not plain text of the user's, a long one."""
    messages = question.body.get("messages")
    if question.path != _CHAT or not isinstance(messages, list) or not messages:
        return None
    last = messages[-1]
    if not isinstance(last, dict) or last.get("role") != "user":
        return None
    text = _text(last.get("content"))
    if text is None or not text.strip() or len(text) > max_chars:
        return None
    rest = {**normal(question.body), "messages": [*messages[:-1], _without_content(last)]}
    words = (
        part.encode("utf-8", "surrogatepass")
        for part in (namespace, question.tenant, question.model, question.version)
    )
    return Asked(digest(*words, msgspec.json.encode(rest, order="deterministic")), text)


def _text(content: Any) -> str | None:
    if isinstance(content, list) and len(content) == 1:
        part = content[0]
        if isinstance(part, dict) and part.get("type") == "text":
            content = part.get("text")
    return content if isinstance(content, str) else None


def _without_content(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "content"}
