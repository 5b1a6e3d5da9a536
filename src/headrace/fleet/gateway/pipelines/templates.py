"""Templates of pipelines: the operator's text over clients' data, in jinja2's sandbox.

What clients send is data and never a template. Results are bounded in size.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from jinja2 import TemplateError, Undefined
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.core.errors import BadRequestError, ConfigError

_FALSE: Final = frozenset({"", "false", "none", "no", "0"})
_ALONE: Final = re.compile(r"\{\{((?:(?!\{\{|\}\}).)*)\}\}", re.DOTALL)
_FAULTS = (
    TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError, AttributeError,
)  # fmt: skip
_TOO_LONG = "A step of the pipeline makes too long a text."


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
        #: Of texts that are one expression and nothing else.
        self._values: dict[str, Any] = {}

    def check(self, text: str, known: Collection[str]) -> None:
        """Raises ConfigError for a text that does not compile, or that names what is not `known` by then."""
        try:
            unknown = find_undeclared_variables(self._environment.parse(text)) - {
                *known,
                *self._environment.globals,
            }
            self._compiled[text] = self._environment.from_string(text)
            if found := _ALONE.fullmatch(text):
                self._values[text] = self._environment.compile_expression(
                    found[1], undefined_to_none=False
                )
        except TemplateError as error:
            raise ConfigError(f"The template {text[:60]!r} is not good: {error}.") from None
        if unknown:
            raise ConfigError(
                f"The template {text[:60]!r} names '{min(unknown)}', which is not there by then."
            )

    def check_deep(self, value: Any, known: Collection[str]) -> None:
        """`check` for every text inside of lists and tables. Raises ConfigError."""
        if isinstance(value, str):
            self.check(value, known)
        elif isinstance(value, list | tuple):
            for item in value:
                self.check_deep(item, known)
        elif isinstance(value, dict):
            self.check_deep(list(value.values()), known)

    def text(self, text: str, values: Mapping[str, Any]) -> str:
        """A checked template with values. Raises BadRequestError where these do not fit it, or make it too long."""
        parts: list[str] = []
        size = 0
        try:
            for part in self._compiled[text].generate(**values):
                size += len(part.encode("utf-8", "surrogatepass"))
                if size > self._max_text:
                    raise BadRequestError(_TOO_LONG)
                parts.append(part)
        except _FAULTS as error:
            raise BadRequestError(f"A template of the pipeline failed: {error}.") from None
        return "".join(parts)

    def holds(self, text: str, values: Mapping[str, Any]) -> bool:
        """A condition: no text stands for true."""
        return not text or self.text(text, values).strip().lower() not in _FALSE

    def deep(self, value: Any, values: Mapping[str, Any]) -> Any:
        """Every text inside of lists and tables as a template, or as the value of the expression that it is."""
        if isinstance(value, str):
            return self._value(value, values) if value in self._values else self.text(value, values)
        if isinstance(value, list | tuple):
            return [self.deep(item, values) for item in value]
        if isinstance(value, dict):
            return {key: self.deep(item, values) for key, item in value.items()}
        return value

    def _value(self, text: str, values: Mapping[str, Any]) -> Any:
        try:
            found = self._values[text](**values)
            if isinstance(found, Undefined):
                raise BadRequestError(f"A template of the pipeline gives nothing: {text[:60]!r}.")
            if len(msgspec.json.encode(found)) > self._max_text:
                raise BadRequestError(_TOO_LONG)
        except _FAULTS as error:
            raise BadRequestError(f"A template of the pipeline failed: {error}.") from None
        return found
