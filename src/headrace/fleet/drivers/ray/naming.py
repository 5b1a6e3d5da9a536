"""What is known of a replica on Ray before it runs, and when it is lost: it stands in the name of its place."""

from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

_PREFIX: Final = "headrace"
_PARTS: Final = 6


class Name(Struct, frozen=True, kw_only=True):
    """Of a placement group and of the actor in it."""

    fleet: str
    id: str
    revision: str
    started: float
    """`Clock.wall`, to a millisecond."""
    version: str

    @property
    def pool(self) -> str:
        """Ids begin with it."""
        return self.id.rpartition("-")[0]

    def __str__(self) -> str:
        milliseconds = str(round(self.started * 1000))
        parts = (_PREFIX, self.fleet, self.id, self.revision, milliseconds, quote(self.version, ""))
        return "/".join(parts)


def read_name(text: str) -> Name | None:
    """None: it is not one of ours."""
    parts = text.split("/")
    if len(parts) != _PARTS or parts[0] != _PREFIX or not parts[4].isdecimal():
        return None
    return Name(
        fleet=parts[1],
        id=parts[2],
        revision=parts[3],
        started=int(parts[4]) / 1000,
        version=unquote(parts[5]),
    )
