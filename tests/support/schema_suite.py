"""More than two hundred JSON Schemas, of every kind that structured output serves."""

from itertools import product
from typing import Any

Schema = dict[str, Any]


def obj(properties: dict[str, Any], *, required: Any = None, **more: Any) -> Schema:
    """An object that has all its properties unless told otherwise, and no others."""
    names = list(properties) if required is None else list(required)
    base = {"type": "object", "properties": properties, "required": names}
    return {**base, "additionalProperties": False, **more}


def text(most: int = 20, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most, **more}


def array(items: Any, most: int = 4, **more: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **more}


INT: Schema = {"type": "integer"}
SMALL: Schema = {"type": "integer", "minimum": -99, "maximum": 99}
BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
VALUES: dict[str, Any] = {
    "text": text(),
    "letter": text(1, minLength=1),
    "small": SMALL,
    "bool": BOOL,
    "null": NULL,
    "enum": {"enum": ["red", "green", 3, None, True, 1.5, ["a"], {"b": 1}]},
    "const": {"const": "fixed"},
    "list": array(SMALL),
    "point": obj({"x": SMALL, "y": SMALL}),
}


def scalars() -> list[Schema]:
    """Types, bounds and lengths."""
    bounds = [(0, 9), (-5, 5), (10, 10), (100, 1999), (-300, -20), (0, 1_000_000)]
    found: list[Schema] = [INT, BOOL, NULL, text(), text(0), text(3, minLength=3)]
    found += [{"type": "integer", "minimum": low, "maximum": high} for low, high in bounds]
    found += [
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 2}
        for low, high in bounds
    ]
    found += [{"type": "number", "minimum": low, "maximum": high + 0.5} for low, high in bounds]
    found += [{"type": "integer", "multipleOf": n, "minimum": 0, "maximum": 999} for n in (2, 5, 7)]
    found += [text(high, minLength=low) for low, high in ((1, 5), (2, 8), (10, 30))]
    found += [{"type": ["string", "null"], "maxLength": 9}, {"type": ["integer", "boolean"]}]
    return found


def enums() -> list[Schema]:
    """Values that are listed."""
    lists: list[list[Any]] = [
        ["a"], ["a", "b", "ab"], [1, 2, 10, 100], [True, None], ["ñ", "日本", "☃"], ['q"q', "b\\b"],
        [1.5, -2], ["", " "], [[1, 2], {"a": []}], list("abcdefghijklmnopqrstuvwxyz"),
    ]  # fmt: skip
    consts: list[Any] = ["x", 7, None, False, [1, "a"], {"k": {"n": 1}}, "line\nbreak", "é"]
    return [{"enum": values} for values in lists] + [{"const": value} for value in consts]


def patterns() -> list[Schema]:
    """Regular expressions and formats."""
    found = [
        r"^[a-z]{3}$", r"^[A-Z][a-z]{1,8}$", r"^\d{3}-\d{4}$", r"^(yes|no)$", r"^#[0-9a-f]{6}$",
        r"^[^\s@]{1,9}@[a-z]{1,9}\.(com|org)$", r"^v\d{1,2}\.\d{1,2}$", r"^\+\d{6,12}$",
        r"^(a|bc)+d?$", r"^[ñéü]{2,4}$", r"^[A-Z]{2}\d{2}( [A-Z0-9]{4}){2}$", r"^.{0,6}$",
    ]  # fmt: skip
    formats = ("date", "time", "date-time", "ipv4", "uuid", "email", "hostname", "duration")
    return [{"type": "string", "pattern": p} for p in found] + [
        obj({"value": {"type": "string", "format": name}}) for name in formats
    ]


def objects() -> list[Schema]:
    """Each value alone, in pairs and nested; optional, renamed and counted properties."""
    found = [obj({name: value}) for name, value in VALUES.items()]
    found += [
        obj({f"first_{a}": VALUES[a], f"second_{b}": VALUES[b]})
        for a, b in product(VALUES, VALUES)
        if a != b
    ]
    found += [obj({"a": VALUES[a], "b": VALUES[b]}, required=["a"]) for a, b in
              zip(VALUES, reversed(VALUES), strict=True)]  # fmt: skip
    keys = ("größe", "日付", "with space", 'q"uote', "back\\slash", "", "$ref_", "☃", "a/b~c", "0")
    found += [obj({key: SMALL, "plain": BOOL}) for key in keys]
    nested: Schema = SMALL
    for depth in range(1, 9):
        nested = obj({f"level{depth}": nested})
        found.append(nested)
    return found


def arrays() -> list[Schema]:
    """Lists of each value, tuples, and counts."""
    found = [array(value, 3) for value in VALUES.values()]
    found += [array(SMALL, high, minItems=low) for low, high in ((0, 0), (1, 1), (2, 5), (3, 3))]
    found += [
        {"type": "array", "prefixItems": [SMALL, BOOL, text(5)], "items": False, "minItems": 3},
        {"type": "array", "prefixItems": [BOOL], "items": SMALL, "minItems": 1, "maxItems": 3},
        array(array(SMALL, 2), 2, minItems=1),
        array(obj({"id": SMALL, "tags": array(text(5), 2)}), 2, minItems=1),
    ]
    return found


def combined() -> list[Schema]:
    """anyOf, oneOf, allOf and references."""
    cat = obj({"kind": {"const": "cat"}, "lives": SMALL})
    dog = obj({"kind": {"const": "dog"}, "name": text(8)})
    found: list[Schema] = [
        {"anyOf": [SMALL, BOOL]},
        {"anyOf": [text(5), NULL, array(SMALL, 2)]},
        {"anyOf": [cat, dog]},
        {"oneOf": [cat, dog]},
        {"oneOf": [text(4), SMALL, NULL]},
        array({"anyOf": [cat, dog]}, 2),
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]},
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 6}]},
        {"allOf": [{"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
                   {"properties": {"b": BOOL}, "required": ["b"]}]},
    ]  # fmt: skip
    point = {"$defs": {"point": VALUES["point"]}}
    node = obj({"value": SMALL, "next": {"anyOf": [{"$ref": "#/$defs/node"}, NULL]}})
    tree = obj({"name": text(4), "children": array({"$ref": "#/$defs/tree"}, 2)})
    found += [
        {"$ref": "#/$defs/point", **point},
        {**obj({"a": {"$ref": "#/$defs/point"}, "b": {"$ref": "#/$defs/point"}}), **point},
        {**array({"$ref": "#/$defs/point"}, 2), **point},
        {**obj({"a": {"$ref": "#/definitions/n"}}), "definitions": {"n": SMALL}},
        {"$ref": "#/$defs/node", "$defs": {"node": node}},
        {"$ref": "#/$defs/tree", "$defs": {"tree": tree}},
    ]
    return found


def open_objects() -> list[Schema]:
    """Properties that are not named."""
    few = {"type": "object", "maxProperties": 3}
    return [
        {**few, "additionalProperties": SMALL},
        {**few, "additionalProperties": BOOL, "minProperties": 1},
        obj({"id": SMALL}, patternProperties={"^x-": BOOL}),
        {"type": "object", "properties": {"a": SMALL}, "required": ["a"],
         "additionalProperties": False, "title": "T", "description": "d", "default": {}},
        {"type": "object", "properties": {}, "additionalProperties": False},
    ]  # fmt: skip


def realistic() -> list[Schema]:
    """As clients send them."""
    address = obj(
        {"street": text(30), "city": text(20), "zip": {"type": "string", "pattern": r"^\d{5}$"}}
    )
    return [
        obj({"name": text(30), "age": {"type": "integer", "minimum": 0, "maximum": 130}, "address": address}),
        obj({"sentiment": {"enum": ["positive", "negative", "neutral"]},
             "confidence": {"type": "number", "minimum": 0, "maximum": 1}}),
        obj({"city": text(20), "unit": {"enum": ["celsius", "fahrenheit"]}}, required=["city"]),
        obj({"title": text(40), "tags": array(text(12), 4), "published": BOOL}),
        obj({"steps": array(obj({"explanation": text(60), "output": text(40)}), 3), "answer": text(40)}),
        obj({"order": obj({"id": {"type": "string", "format": "uuid"}, "lines": array(
            obj({"sku": text(8), "count": {"type": "integer", "minimum": 1, "maximum": 9}}), 3)})}),
        obj({"entities": array(obj({"text": text(16), "label": {"enum": ["PER", "ORG", "LOC"]}}), 4)}),
        obj({"x": {"type": "number"}, "y": {"type": "number"}}),
    ]  # fmt: skip


def all_schemas() -> list[Schema]:
    """The whole suite, always in the same order."""
    parts = (
        scalars, enums, patterns, objects, arrays, combined, open_objects, realistic,
    )  # fmt: skip
    return [schema for part in parts for schema in part()]
