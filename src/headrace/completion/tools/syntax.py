"""What a format of calls must tell: where calls may begin, where they end, and what they say."""

from collections.abc import Container
from typing import Final, Protocol

from msgspec import Struct

#: Brackets within brackets in one call. The JSON decoder, which recurses, allows about a thousand.
MAX_DEPTH: Final = 200


class Call(Struct, frozen=True):
    """One complete call; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class Found(Struct, frozen=True):
    """The calls of a block that ends at `end`."""

    calls: tuple[Call, ...]
    end: int


class Failed(Struct, frozen=True):
    """The block is none: its text up to `end` (at least one character) is text like any other."""

    end: int


class Block(Protocol):
    """One block of calls while it is read."""

    def read(self, text: str, *, is_end: bool) -> Found | Failed | None:
        """What the block is; None: more text is needed, never at the end.

        `text` is everything since the block's begin mark, that included, and grows from call to call. The
        answer depends on its decisive beginning only, never on what comes behind that.
        """
        ...


class Syntax(Protocol):
    """One format."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Each begins a block, anywhere in the text."""
        ...

    @property
    def bare(self) -> str:
        """Characters that begin a block where nothing, or only calls, came before."""
        ...

    @property
    def separators(self) -> str:
        """Characters between two calls that are neither text nor white space."""
        ...

    def block(self, names: Container[str]) -> Block:
        """A new block; a call of a tool that is not in `names` is none."""
        ...
