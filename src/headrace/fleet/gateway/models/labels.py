"""Names of models as labels of metrics: those that somebody serves or the configuration names, and no others."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from headrace.config.fleet.models import ModelsConfig
from headrace.observe.labels import OTHER

#: Names that are labels of their own at most.
MAX_NAMES: Final = 1000

NameLabel = Callable[[str], str]
"""The label of a model, or of a model and which of its replicas."""


class ModelLabels:
    """While replicas have not told what they serve, clients may ask for any name: none of those becomes a label."""

    def __init__(self, known: Callable[[], Iterable[str]], max_names: int = MAX_NAMES) -> None:
        """`known` are the names that are models now; asked for names that have not been labels yet."""
        self._known = known
        self._max_names = max_names
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        """`name` (a model, perhaps with `@` and a version or labels), or `other`."""
        if name in self._names:
            return name
        is_known = any(name == model or name.startswith(f"{model}@") for model in self._known())
        if not is_known or len(self._names) >= self._max_names:
            return OTHER
        self._names.add(name)
        return name


def configured_names(config: ModelsConfig) -> Iterator[str]:
    """Names that rules have or lead to, as they stand there."""
    for rule in config.rules:
        yield from (name for name in (rule.name, *rule.mentions()) if "*" not in name)
