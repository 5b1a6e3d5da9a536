"""Which versions of a model are deployed: an answer of one that is gone is not told any more."""

from typing import Final

from headrace.fleet.registry import Registry

#: Models that are remembered while no replica serves them.
_MAX_MODELS: Final = 10_000


class Versions:
    """Of the models of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._last: dict[str, str] = {}

    def of(self, model: str) -> str:
        """A word that changes when a version comes or goes; while no replica is there, that of the last ones."""
        found = {one.spec.version for one in self._registry if model in one.models}
        if not found:
            return self._last.get(model, "")
        word = "\x1f".join(sorted(found))
        if self._last.get(model) != word:
            self._last.pop(model, None)
            while len(self._last) >= _MAX_MODELS:
                del self._last[next(iter(self._last))]
            self._last[model] = word
        return word
