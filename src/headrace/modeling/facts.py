"""Typed, bounded reading of what a checkpoint says about itself.

config.json and GGUF metadata come from strangers: every value is checked here, once, and a bad one
is a `ModelLoadError` that names the key and the file.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from headrace.core.errors import ModelLoadError

#: No size that describes a model is larger (vocabularies, hidden sizes, contexts).
MAX_SIZE = 1 << 31


class Facts:
    """A read-only view of a mapping. `origin` names the file in messages, `prefix` starts each key.

    A key that is absent or null takes the default; without a default it is an error.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self._values = values
        self.origin = origin
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """The key is there and not null."""
        return self._get(key) is not None

    def integer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE
    ) -> int:
        """An integer in [minimum, maximum]. A list of equal integers (one a layer) counts as one."""
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self._refuse(key, f"an integer from {minimum} to {maximum}")
        return int(value)

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        allows_zero: bool = False,
        maximum: float = 1e12,
    ) -> float:
        """A positive number up to `maximum`; zero only where it has a meaning."""
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(key, "a number")
        if not (0 < value <= maximum or (allows_zero and value == 0)):  # NaN fails both
            self._refuse(key, f"a number above 0 and at most {maximum:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self._refuse(key, "a string")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive finite numbers; empty when absent."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            self._refuse(key, "a list of numbers")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int | float):
                self._refuse(key, "a list of numbers")
            if not math.isfinite(item) or item <= 0:
                self._refuse(key, "a list of positive numbers")
        return tuple(float(item) for item in value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse(key, "a list of strings")
        return tuple(value)

    def section(self, key: str) -> "Facts":
        """A nested mapping; empty when absent."""
        value = self._get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            self._refuse(key, "an object")
        return Facts(value, self.origin, "")

    def raw(self, key: str) -> Any:
        """The value as it is, or None; the caller checks it."""
        return self._get(key)

    def _get(self, key: str) -> Any:
        return self._values.get(self._prefix + key)

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        value = self._get(key)
        shown = "it is missing" if value is None else f"it is {_shorten(value)}"
        raise ModelLoadError(f"{self.origin}: {self._prefix}{key} must be {wanted}, but {shown}.")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
