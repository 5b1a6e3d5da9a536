"""Pages of a list, as OpenAI's lists have them: `limit`, `after` and `order`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast
from urllib.parse import parse_qsl

from msgspec import Struct

from headrace.core.errors import BadRequestError
from headrace.web.asgi import Scope

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
MAX_QUERY = 4096


class Window(Struct, frozen=True):
    """Which part of a list."""

    limit: int
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"


class Page(Struct, Generic[T], frozen=True):
    """That part, and whether there is more behind it."""

    items: list[T]
    has_more: bool


def query_of(scope: Scope) -> dict[str, str]:
    """The last value of each name. Raises BadRequestError."""
    text = scope.get("query_string", b"")[: MAX_QUERY + 1].decode("latin-1")
    if len(text) > MAX_QUERY:
        raise BadRequestError(f"The query has more than {MAX_QUERY} characters.")
    try:
        return dict(parse_qsl(text, max_num_fields=32))
    except ValueError:
        raise BadRequestError("The query has more than 32 fields.") from None


def window_of(query: dict[str, str], *, default: int, largest: int) -> Window:
    """Raises BadRequestError that names the parameter."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= largest):
        raise BadRequestError(f"'limit' must be a whole number from 1 to {largest}.", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequestError("'order' must be asc or desc.", param="order")
    return Window(int(text), query.get("after"), cast("Literal['asc', 'desc']", order))


def page_of(
    db: "sqlite3.Connection", columns: str, source: str, values: Sequence[Any], window: Window
) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows of `source` (a table and its WHERE), and whether there are more."""
    where, given = "", list(values)
    if window.after is not None:
        found = db.execute(f"SELECT seq FROM {source} AND id = ?", (*values, window.after))
        row = found.fetchone()
        if row is None:
            raise BadRequestError("'after' names nothing that is here.", param="after")
        where = f"AND seq {'<' if window.order == 'desc' else '>'} ?"
        given.append(row[0])
    rows = db.execute(
        f"SELECT {columns} FROM {source} {where} ORDER BY seq {window.order} LIMIT ?",
        (*given, window.limit + 1),
    ).fetchall()
    return rows[: window.limit], len(rows) > window.limit
