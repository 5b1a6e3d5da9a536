"""Requests that run, by the names under which they can be ended."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class _Entry(NamedTuple):
    owner: bytes
    end: Callable[[], None]


class OpenRequests:
    """A name is an answer's id or what a client called its request; several requests may share one.

    Bounded by admission: each request that runs is here under two or a few names.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, list[_Entry]] = {}

    @contextmanager
    def listed(self, names: Iterable[str], owner: bytes, end: Callable[[], None]) -> Iterator[None]:
        """A request of this owner's (the digest of a key); `end` ends it. Listed inside the `with`."""
        entry = _Entry(owner, end)
        own = set(names)
        for name in own:
            self._by_name.setdefault(name, []).append(entry)
        try:
            yield
        finally:
            for name in own:
                entries = self._by_name[name]
                entries.remove(entry)
                if not entries:
                    del self._by_name[name]

    def end(self, name: str, owner: bytes) -> int:
        """End the requests of this name that the owner started; how many there were."""
        own = [entry for entry in self._by_name.get(name, ()) if entry.owner == owner]
        for entry in own:
            entry.end()
        return len(own)

    def names(self, owner: bytes) -> list[str]:
        """Of all that the owner has running."""
        return [
            name
            for name, entries in self._by_name.items()
            if any(entry.owner == owner for entry in entries)
        ]

    def end_all(self, owner: bytes) -> int:
        """End everything that the owner started; how many requests that were."""
        own = {
            id(entry): entry
            for entries in self._by_name.values()
            for entry in entries
            if entry.owner == owner
        }
        for entry in own.values():
            entry.end()
        return len(own)
