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


class BoundedSeries:
    """Label values that belong together: model, tenant, class. The first combinations that come have a series each; of
    later ones, tenants share one; and when there are too many of those, all share one.
    """

    def __init__(self, max_series: int = 100) -> None:
        self._max_series = max_series
        self._own: set[tuple[str, str, str]] = set()
        self._shared: set[tuple[str, str, str]] = set()

    def labels(self, model: str, tenant: str, priority: str) -> tuple[str, str, str]:
        """The same, or with `other` in it."""
        return (
            self._kept(self._own, (model, tenant, priority))
            or self._kept(self._shared, (model, OTHER, priority))
            or (OTHER, OTHER, OTHER)
        )

    def _kept(
        self, known: set[tuple[str, str, str]], wanted: tuple[str, str, str]
    ) -> tuple[str, str, str] | None:
        if wanted not in known:
            if len(known) >= self._max_series:
                return None
            known.add(wanted)
        return wanted
