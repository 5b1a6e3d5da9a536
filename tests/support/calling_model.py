"""A replica that calls the tool that its last message names: `call NAME {"a": 1}`; and tells a result it is given."""

import json
from typing import Any

from tests.support.stub_replica import Reply

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def calling(path: str, body: bytes) -> Reply:
    """A handler for `stub_replica`."""
    if path == "/v1/models":
        return Reply(b'{"data":[{"id":"m"}]}')
    given = json.loads(body)
    if path == "/v1/responses":
        return Reply(json.dumps(_response(given)).encode())
    last = given["messages"][-1]
    call = _wanted(last["content"]) if last["role"] == "user" else None
    text = "" if call else f"<{last['content']}>"
    if given.get("stream"):
        return Reply(_events(text, call), content_type="text/event-stream")
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if call:
        message["tool_calls"] = [call]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
    whole = {"id": "a", "created": 5, "model": "m", "choices": [choice], "usage": USAGE}
    return Reply(json.dumps(whole).encode())


def _wanted(text: str) -> dict[str, Any] | None:
    if not text.startswith("call "):
        return None
    _, name, arguments = text.split(" ", 2)
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def _response(given: dict[str, Any]) -> dict[str, Any]:
    last = given["input"][-1] if isinstance(given["input"], list) else {"content": given["input"]}
    call = _wanted(last.get("content", ""))
    if call:
        item = {"type": "function_call", "id": "f1", "call_id": "c1", **call["function"]}
    else:
        part = {"type": "output_text", "text": f"<{last.get('output', last.get('content'))}>"}
        item = {"type": "message", "id": "m1", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return {"id": "r", "status": "completed", "output": [item], "usage": usage}


def _events(text: str, call: dict[str, Any] | None) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": char} for char in text]
    if call:
        deltas.append({"tool_calls": [{"index": 0, **call}]})
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    reason = "tool_calls" if call else "stop"
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    head = {"id": "a", "created": 5, "model": "m"}
    chunks: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in choices]
    chunks.append({**head, "choices": [], "usage": USAGE})
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]
