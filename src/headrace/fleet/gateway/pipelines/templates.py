"""Templates of pipelines: the operator's text over clients' data, in jinja2's sandbox.

What clients send is data and never a template. Results are bounded in size.
"""

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.core.errors import BadRequestError, ConfigError

_FALSE = frozenset({"", "false", "none", "no", "0"})


class Templates:
    """Compiled once for each text."""

    def __init__(self, max_text: int) -> None:
        self._max_text = max_text
        self._environment = ImmutableSandboxedEnvironment(
            autoescape=False, trim_blocks=True, lstrip_blocks=True
        )
        # A range of a thousand million is no text that anybody wants.
        self._environment.globals.pop("range", None)
        self._compiled: dict[str, Any] = {}

    def check(self, text: str) -> None:
        """Raises ConfigError for a text that does not compile."""
        try:
            self._compiled[text] = self._environment.from_string(text)
        except TemplateError as error:
            raise ConfigError(f"The template {text[:60]!r} is not good: {error}.") from None

    def text(self, text: str, values: Mapping[str, Any]) -> str:
        """A template with values. Raises BadRequestError where these values do not fit it, or make it too long."""
        if text not in self._compiled:
            self.check(text)
        parts: list[str] = []
        size = 0
        try:
            for part in self._compiled[text].generate(**values):
                size += len(part)
                if size > self._max_text:
                    raise BadRequestError("A step of the pipeline makes too long a text.")
                parts.append(part)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise BadRequestError(f"A template of the pipeline failed: {error}.") from None
        return "".join(parts)

    def holds(self, text: str, values: Mapping[str, Any]) -> bool:
        """A condition: no text stands for true."""
        return not text or self.text(text, values).strip().lower() not in _FALSE

    def deep(self, value: Any, values: Mapping[str, Any]) -> Any:
        """Every text inside of lists and tables as a template."""
        if isinstance(value, str):
            return self.text(value, values)
        if isinstance(value, list | tuple):
            return [self.deep(item, values) for item in value]
        if isinstance(value, dict):
            return {key: self.deep(item, values) for key, item in value.items()}
        return value
