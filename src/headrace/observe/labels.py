"""Label values out of a bounded set, whatever names there are."""

from typing import Final

#: What names beyond the bound are called.
OTHER: Final = "other"


class BoundedNames:
    """The first names that come are labels of their own; all later ones share one."""

    def __init__(self, max_names: int = 1000) -> None:
        self._max_names = max_names
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        """The name, or `other`."""
        if name in self._names:
            return name
        if len(self._names) >= self._max_names:
            return OTHER
        self._names.add(name)
        return name
