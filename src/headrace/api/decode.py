"""Bytes → request struct, or a sentence that names the field."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from headrace.api.choices import choices_at
from headrace.config.faults import fault_of, missing_field, place_of
from headrace.core.errors import BadRequestError

T = TypeVar("T")

_STRANGE = re.compile(r"^Invalid enum value (?P<value>.+)$", re.DOTALL)


def decode(body: bytes, kind: type[T], *, construct: Callable[[type, Any], Any] | None = None) -> T:
    """Decode a JSON body; `construct` makes what msgspec does not know, or raises ValueError.

    Raises BadRequestError with `param` where the fault has a place.
    """
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=construct)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(
            f"The body is not valid JSON: {error or 'it is nested too deeply'}.",
            code="invalid_json",
        ) from None


def convert(values: object, kind: type[T]) -> T:
    """Python values as a request. Raises BadRequestError with `param` where the fault has a place."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None


def convert_field(name: str, value: object, kind: Any) -> Any:
    """One field's value. Raises BadRequestError that names it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"'{name}': {fault_of(str(error))}.", param=name) from None


def _explain(text: str, kind: Any) -> BadRequestError:
    what, path = place_of(text)
    param = path.removeprefix("$").removeprefix(".").replace("[...]", "") if path else None
    if missing := missing_field(what):
        field = f"{param}.{missing}" if param else missing
        return BadRequestError(
            f"'{field}' is required.", param=field, code="missing_required_parameter"
        )
    strange = _STRANGE.match(what)
    if strange and (choices := choices_at(kind, path or "$")):
        fault = f"{strange['value']} is none of {', '.join(choices)}"
        return BadRequestError(f"{_subject(param)}: {fault}.", param=param or None)
    return BadRequestError(f"{_subject(param)}: {fault_of(what)}.", param=param or None)


def _subject(param: str | None) -> str:
    return f"'{param}'" if param else "The body"
