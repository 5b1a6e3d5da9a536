"""Messages of gRPC → bodies of requests, and bodies of answers → messages. Names are the same on both sides."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from google.protobuf import json_format

from headrace.core.errors import BadRequestError

#: Fields whose own fields belong into the body itself.
_FLAT: Final = frozenset({"sampling", "options"})
#: Other names of fields in the body.
_RENAMED: Final = {"text": "prompt", "tokens": "prompt"}
#: Whole numbers up to here are exact in a Struct, whose numbers are doubles.
_EXACT: Final = 2.0**53


def body_of(message: Any, *, is_stream: bool) -> dict[str, Any]:
    """The body that asks for the same. Raises BadRequestError that names the field."""
    body: dict[str, Any] = {}
    for name, value in _members(message, "").items():
        if name not in _FLAT:
            body[_RENAMED.get(name, name)] = value["ids"] if name == "tokens" and value else value
            continue
        for inner, given in value.items():
            if inner in body or inner in ("stream", "stream_options"):
                raise BadRequestError(
                    f"'{name}.{inner}' is given elsewhere, or by the method.",
                    param=f"{name}.{inner}",
                )
            body[inner] = given
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def fill(message: Any, answer: bytes) -> Any:
    """The message with what a JSON object holds; what it has no field for is left out."""
    return json_format.ParseDict(msgspec.json.decode(answer), message, ignore_unknown_fields=True)


def _members(message: Any, place: str) -> dict[str, Any]:
    return {
        field.name: _field(field, value, f"{place}.{field.name}".lstrip("."))
        for field, value in message.ListFields()
    }


def _field(field: Any, value: Any, name: str) -> Any:
    if field.is_repeated:
        return [_single(field, item, f"{name}[{place}]") for place, item in enumerate(value)]
    return _single(field, value, name)


def _single(field: Any, value: Any, name: str) -> Any:
    if isinstance(value, float):
        return _number(value, name)
    if field.message_type is None:
        return value
    kind = field.message_type.full_name
    if kind == "google.protobuf.Struct":
        return _object(value.fields, name)
    if kind == "google.protobuf.Value":
        return _any(value, name)
    # The ids alone, so that none at all is an empty list and not a missing prompt.
    return {"ids": list(value.ids)} if kind == "headrace.v1.TokenIds" else _members(value, name)


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: _any(value, f"{name}.{key}") for key, value in fields.items()}


def _any(value: Any, name: str) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _object(value.struct_value.fields, name)
    if kind == "list_value":
        items = enumerate(value.list_value.values)
        return [_any(item, f"{name}[{place}]") for place, item in items]
    if kind == "number_value":
        number = _number(value.number_value, name)
        return int(number) if number.is_integer() and abs(number) <= _EXACT else number
    if kind in (None, "null_value"):
        return None
    return getattr(value, kind)


def _number(value: float, name: str) -> float:
    if not math.isfinite(value):  # JSON has no such numbers, and would say null
        raise BadRequestError(f"'{name}' must be a finite number.", param=name)
    return value
