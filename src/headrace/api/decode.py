"""Bytes → request struct, or a sentence that names the field."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from headrace.api.choices import choices_at
from headrace.core.errors import BadRequestError

T = TypeVar("T")

#: msgspec ends its sentences with the place, such as "- at `$.messages[0].role`".
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`)?$", re.DOTALL)
_NAMES = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "a string",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "an object",
    "`null`": "null",
}
_SEEN = _NAMES | {"`bool`": "a boolean"}
_TYPES = re.compile(r"^Expected (?P<wanted>`[^,]*`), got (?P<got>`\w+`)$")
_STRANGE = re.compile(r"^Invalid enum value (?P<value>.+)$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")


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
        raise BadRequestError(f"'{name}': {_fault(str(error))}.", param=name) from None


def _explain(text: str, kind: Any) -> BadRequestError:
    match = _PLACE.match(text)
    what, path = (match["what"], match["path"]) if match else (text, None)
    param = path.removeprefix("$").removeprefix(".").replace("[...]", "") if path else None
    missing = _MISSING.match(what)
    if missing:
        field = f"{param}.{missing['field']}" if param else missing["field"]
        return BadRequestError(
            f"'{field}' is required.", param=field, code="missing_required_parameter"
        )
    strange = _STRANGE.match(what)
    if strange and (choices := choices_at(kind, path or "$")):
        fault = f"{strange['value']} is none of {', '.join(choices)}"
        return BadRequestError(f"{_subject(param)}: {fault}.", param=param or None)
    return BadRequestError(f"{_subject(param)}: {_fault(what)}.", param=param or None)


def _subject(param: str | None) -> str:
    return f"'{param}'" if param else "The body"


def _fault(what: str) -> str:
    types = _TYPES.match(what)
    if types is None:
        for name, words in _NAMES.items():
            what = what.replace(name, words)
        return what[:1].lower() + what[1:].replace("`", "").replace("array", "list")
    wanted = [
        _NAMES.get(f"`{name.strip()}`", f"one of {name.strip()}")
        for name in types["wanted"].strip("`").split("|")
        if name.strip() != "null"
    ]
    return f"expected {' or '.join(wanted)}, got {_SEEN.get(types['got'], types['got'].strip('`'))}"
