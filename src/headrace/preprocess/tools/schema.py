"""The schema of a tool's parameters: looked over before it is shown to a model or made a grammar.

What is wrong by itself is found here, by place. Whether a schema can be made a grammar is asked only where one
is needed.
"""

from typing import Any, Final

from headrace.core.errors import BadRequestError

_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
#: Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE: Final = (
    "items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems",
)  # fmt: skip
_LIST: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COUNTS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_MAX_DEPTH: Final = 64
#: With any of these beside it, what properties an object may have is not said by `properties` alone.
_OPEN: Final = (
    "additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf",
    "$ref", "if", "dependentSchemas",
)  # fmt: skip


def check_schema(schema: Any, place: str, depth: int = 0) -> None:
    """Raises BadRequestError that names the place of the first fault."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _fault(place, "must be a JSON schema, which is an object")
    if depth > _MAX_DEPTH:
        raise _fault(place, f"is nested more than {_MAX_DEPTH} levels deep")
    _check_words(schema, place)
    _check_parts(schema, place, depth)


def _check_parts(schema: dict[str, Any], place: str, depth: int) -> None:
    for key in _ONE:
        value = schema.get(key)
        if key == "items" and isinstance(value, list):  # before draft 2020-12
            _check_list(value, f"{place}.{key}", depth)
        elif value is not None:
            check_schema(value, f"{place}.{key}", depth + 1)
    for key in _LIST:
        if key in schema:
            _check_list(schema[key], f"{place}.{key}", depth)
    for key in _NAMED:
        if key in schema:
            _check_named(schema[key], f"{place}.{key}", depth)


def narrow(schema: Any, depth: int = 0) -> Any:
    """The same schema without properties that nobody named, where it does not speak of them.

    By itself JSON Schema allows any, and a small model that may invent properties never comes to an end.
    Whatever fulfils the narrower schema fulfils the given one.
    """
    if isinstance(schema, list):
        return [narrow(item, depth + 1) for item in schema]
    if not isinstance(schema, dict) or depth > 2 * _MAX_DEPTH:
        return schema
    made = {
        key: {name: narrow(item, depth + 1) for name, item in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else narrow(value, depth + 1)
        if key in _ONE or key in _LIST
        else value
        for key, value in schema.items()
    }
    if "properties" in made and not any(key in made for key in _OPEN):
        made["additionalProperties"] = False
    return made


def _check_words(schema: dict[str, Any], place: str) -> None:
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise _fault(f"{place}.type", f"must be one of {', '.join(sorted(_TYPES))}")
    required = schema.get("required", [])
    # Draft 3 wrote `required: true` on a property; some clients still do.
    if not isinstance(required, bool) and not _are_texts(required):
        raise _fault(f"{place}.required", "must be a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _fault(f"{place}.enum", "must be a list of at least one value")
    for key in ("$ref", "pattern"):
        if key in schema and not isinstance(schema[key], str):
            raise _fault(f"{place}.{key}", "must be a text")
    for key in _COUNTS:
        count = schema.get(key, 0)
        if isinstance(count, bool) or not isinstance(count, int | float) or count < 0:
            raise _fault(f"{place}.{key}", "must be a whole number, at least 0")


def _check_list(value: Any, place: str, depth: int) -> None:
    if not isinstance(value, list) or not value:
        raise _fault(place, "must be a list of at least one schema")
    for number, item in enumerate(value):
        check_schema(item, f"{place}[{number}]", depth + 1)


def _check_named(value: Any, place: str, depth: int) -> None:
    if not isinstance(value, dict):
        raise _fault(place, "must be an object of schemas by name")
    for name, item in value.items():
        check_schema(item, f"{place}.{name[:64]}", depth + 1)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _fault(place: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{place}': {what}.", param=place, code="invalid_function_parameters")
