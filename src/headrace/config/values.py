"""One value of one field: read from text, checked against the field's type."""

import math
from typing import Any, Final

import msgspec

from headrace.config.fields import ConfigField, Kind
from headrace.config.units import parse_duration, parse_flag, parse_size
from headrace.core.errors import ConfigError

#: How values of a unit may be written.
_FORMS: Final = {"seconds": " (such as 90, 10m or 24h)", "bytes": " (such as 512MiB or 4GiB)"}


def from_text(field: ConfigField, text: str, origin: str) -> Any:
    """The checked value that `text` stands for. "none" unsets an optional field."""
    if field.is_optional and text.strip().lower() == "none":
        return None
    try:
        return checked(field, _read(field, text), origin)
    except ValueError:
        raise _refusal(field, text, origin) from None


def checked(field: ConfigField, value: Any, origin: str) -> Any:
    """`value` as the field's type. Raises ConfigError that names field, origin and what is expected."""
    try:
        if field.unit is not None and isinstance(value, str):
            value = _read(field, value)
        result = msgspec.convert(
            value, field.type, strict=field.kind is not Kind.LIST, dec_hook=_construct
        )
    except ValueError:
        raise _refusal(field, value, origin) from None
    if isinstance(result, float) and not math.isfinite(result):
        raise _refusal(field, value, origin)
    return result


def _read(field: ConfigField, text: str) -> Any:
    match field.kind:
        case Kind.FLAG:
            return parse_flag(text)
        case Kind.INTEGER:
            return parse_size(text) if field.unit == "bytes" else int(text)
        case Kind.NUMBER:
            return parse_duration(text) if field.unit == "seconds" else float(text)
        case Kind.LIST:
            return text.replace(",", " ").split()
        case Kind.TREE:
            raise ValueError("tables are set in a file")
        case Kind.TEXT:
            return text


def _construct(wanted: type, value: Any) -> Any:
    # Types that msgspec does not know (Secret) are made from text.
    if not isinstance(value, str):
        raise ValueError("not a text")
    return wanted(value)


def _refusal(field: ConfigField, value: Any, origin: str) -> ConfigError:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    shown = text if len(text) <= 60 else text[:60] + "…"
    is_text = isinstance(value, str) and "such as" not in field.expected
    forms = _FORMS.get(field.unit or "", "") if is_text else ""
    return ConfigError(
        f"{field.attribute} from {origin} must be {field.expected}{forms}, not '{shown}'."
    )
