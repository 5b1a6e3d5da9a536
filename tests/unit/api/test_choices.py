"""Which values a field may have, by its place."""

from enum import StrEnum
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from headrace.api.choices import choices_at


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Struct):
    kind: Literal["a", "b"] | int | None = None
    name: str = ""


class Outer(Struct, rename={"colour": "color"}):
    colour: Colour = Colour.RED
    items: Annotated[list[Inner], Meta(max_length=3)] | None = None
    table: dict[str, Colour] = {}
    again: "Outer | None" = None


@pytest.mark.parametrize(
    ("path", "choices"),
    [
        ("$.color", ("red", "blue")),
        ("$.items[12].kind", ("a", "b")),
        ("$.table[...]", ("red", "blue")),
        ("$.again.again.items[0].kind", ("a", "b")),
        ("$.items[0].name", ()),
        ("$.colour", ()),
        ("$.items.kind", ()),
        ("$", ()),
        ("", ()),
    ],
)
def test_by_place(path: str, choices: tuple[str, ...]) -> None:
    assert choices_at(Outer, path) == choices


def test_a_bare_one() -> None:
    assert choices_at(Colour, "$") == ("red", "blue")
