"""A whole response as OpenAI streams one: https://platform.openai.com/docs/api-reference/responses-streaming."""

from collections.abc import Iterator
from typing import Any

import msgspec


def events_of(response: dict[str, Any]) -> Iterator[bytes]:
    """Its events in order, each as JSON that begins with its type."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    told = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for place, item in enumerate(response["output"]):
        told += _item(place, item)
    told.append((f"response.{response.get('status') or 'completed'}", {"response": response}))
    for number, (kind, fields) in enumerate(told):
        yield msgspec.json.encode({"type": kind, "sequence_number": number, **fields})


Told = tuple[str, dict[str, Any]]


def _item(place: int, item: dict[str, Any]) -> Iterator[Told]:
    where = {"item_id": item.get("id"), "output_index": place}
    kind = item.get("type")
    shell = {**item, "status": "in_progress"} if "status" in item else item
    if kind == "message":
        shell = {**shell, "content": []}
    elif kind in ("function_call", "mcp_call"):
        shell = {**shell, "arguments": ""}
    yield "response.output_item.added", {"output_index": place, "item": shell}
    if kind == "message":
        for index, part in enumerate(item.get("content") or ()):
            yield from _part({**where, "content_index": index}, part)
    elif kind == "function_call":
        yield from _arguments("response.function_call_arguments", where, item)
    elif kind == "mcp_call":
        yield "response.mcp_call.in_progress", where
        yield from _arguments("response.mcp_call_arguments", where, item)
        yield f"response.mcp_call.{'failed' if item.get('error') else 'completed'}", where
    yield "response.output_item.done", {"output_index": place, "item": item}


def _arguments(prefix: str, where: dict[str, Any], item: dict[str, Any]) -> Iterator[Told]:
    arguments = item.get("arguments") or ""
    yield f"{prefix}.delta", {**where, "delta": arguments}
    yield f"{prefix}.done", {**where, "arguments": arguments, "name": item.get("name")}


def _part(where: dict[str, Any], part: dict[str, Any]) -> Iterator[Told]:
    text = part.get("text")
    if not isinstance(text, str):  # a refusal
        yield "response.content_part.added", {**where, "part": part}
        yield "response.content_part.done", {**where, "part": part}
        return
    logprobs = part.get("logprobs") or []
    yield "response.content_part.added", {**where, "part": {**part, "text": ""}}
    yield "response.output_text.delta", {**where, "delta": text, "logprobs": logprobs}
    yield "response.output_text.done", {**where, "text": text, "logprobs": logprobs}
    yield "response.content_part.done", {**where, "part": part}
