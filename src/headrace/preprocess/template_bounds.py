"""Jinja's sandbox with a bound on what a template can make.

A template doubles a text in twenty characters, and one that does so forty times wants a terabyte. So every
expression that makes a text or a list pays for it, out of an allowance that one rendering has: operators, `~`,
slices, methods of texts, filters, captured blocks. Those that can make much out of little pay before they do.
What is not bounded is time, but for loops over `range`: a template may go over the messages as often as it
likes.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Characters and elements that all expressions of one rendering may make. Real templates make each character
#: of the messages about ten times.
MAX_MADE: Final = 128 * 1024 * 1024
#: Elements of what one multiplication may repeat a text or list to, and bits of a product of numbers.
MAX_REPEATED: Final = 1_000_000
_MAX_BITS: Final = 4096
#: What an element of a list counts beside its text: about its bytes.
_ELEMENT: Final = 64

_PADDING: Final = frozenset({"center", "ljust", "rjust", "zfill", "batch", "slice"})
_MULTIPLYING: Final = frozenset({"indent", "expandtabs", "translate", "tojson"})
_SPELLING: Final = frozenset(
    {"string", "pprint", "xmlattr", "urlize", "sum", "wordwrap", "escape", "e", "forceescape"}
)
_SIZED: Final = (str, bytes, list, tuple)


class Allowance:
    """What one rendering may still make."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_MADE

    def spend(self, size: int) -> None:
        """Raises SecurityError when there is not that much left."""
        self.left -= size
        if self.left < 0:
            raise SecurityError(f"it makes more than {MAX_MADE} characters")


def weigh(value: Any, limit: int) -> int:
    """Characters of a value written out, roughly; it stops counting beyond `limit`.

    A list that holds one large text many times is as heavy as what it looks like.
    """
    total, rest = 0, [value]
    while rest and total <= limit:
        item = rest.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, dict):
            total += 2 * _ELEMENT * len(item)
            rest += (*item.keys(), *item.values())
        elif isinstance(item, list | tuple):
            total += _ELEMENT * len(item)
            rest += item
        else:
            total += _ELEMENT
    return total


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders templates under an allowance; one rendering is one thread's."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.code_generator_class = _CodeGenerator
        self.finalize = self._written
        self.globals.pop("lipsum", None)
        self._current = threading.local()

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """What is rendered or compiled inside has an allowance of its own."""
        self._current.allowance = Allowance()
        try:
            yield
        finally:
            del self._current.allowance

    def bound_filters(self) -> None:
        """Let every filter that is known now pay for what it makes."""
        self.filters = {name: self._paying(name, f) for name, f in self.filters.items()}

    # -- expressions ------------------------------------------------------------------------------

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Part of Jinja's sandbox."""
        if operator == "+":
            if isinstance(left, _SIZED) and isinstance(right, _SIZED):
                self._spend(len(left) + len(right))
        elif operator == "%":
            if isinstance(left, str):
                self._spend(self._formatted(left, right))
        elif operator == "**":
            if not (abs(left) <= 1_000_000 and abs(right) <= 16):
                raise SecurityError("it raises to too high a power")
        else:
            self._check_product(left, right)
        return super().call_binop(context, operator, left, right)

    def join_texts(self, parts: Iterable[Any]) -> str:
        """`a ~ b`."""
        texts = [part if isinstance(part, str) else str(self._written(part)) for part in parts]
        return self.concat(texts)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins what a macro or a block wrote."""
        texts = list(parts)
        self._spend(sum(map(len, texts)))
        return "".join(texts)

    def sliced(self, value: Any) -> Any:
        """A value that a slice is taken of."""
        if isinstance(value, _SIZED):
            self._spend(len(value))
        return value

    def call(__self, __context: Any, __callee: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Part of Jinja's sandbox. Methods of texts pay."""
        # The sandbox has put a function of its own around `format`.
        method = getattr(__callee, "__wrapped__", __callee)
        name, owner = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
            __self._spend(__self._price(name, owner, args, kwargs))
        result = super().call(__context, __callee, *args, **kwargs)
        __self._spend(_size(result))
        return result

    # -- prices -----------------------------------------------------------------------------------

    def _spend(self, size: int) -> None:
        allowance = getattr(self._current, "allowance", None)
        if allowance is None:  # what is used outside of `rendering` cannot be told from one another
            allowance = Allowance()
        allowance.spend(size)

    def _paying(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays. Its first argument is a context where it asks for one."""
        place = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def paying(*args: Any, **kwargs: Any) -> Any:
            given, value, rest = args[:place], args[place], args[place + 1 :]
            if name == "join" and not isinstance(value, str):
                value = list(value)
            self._spend(self._filter_price(name, value, rest, kwargs))
            result = function(*given, value, *rest, **kwargs)
            self._spend(_size(result))
            return result

        return paying

    def _filter_price(
        self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """Before a filter runs; most make no more than they are given."""
        if name == "join":
            separator = (*args, *kwargs.values(), "")[0]
            return self._price("join", separator, (value,), {})
        if name == "replace":
            value = str(self._written(value))
        if name in _SPELLING:
            return self._weight(value)
        return self._price(name, value, args, kwargs)

    def _price(self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What a method or filter of this name may make of `value` beyond its own size."""
        given = (*args, *kwargs.values())
        if name == "replace" and len(given) >= 2:
            old, new = str(given[0]), str(given[1])
            return int(value.count(old)) * len(new)
        if name == "join" and given:
            return self._weight(given[0]) + len(given[0]) * len(str(value))
        if name in ("format", "format_map"):
            return self._formatted(str(value), given)
        if name in _PADDING:
            return sum(map(_magnitude, given))
        if name in _MULTIPLYING:
            return self._weight(value) * (1 + sum(map(_magnitude, given)))
        return 0

    def _formatted(self, pattern: str, values: Any) -> int:
        """Characters that a format may make: each field shows all values, and as wide as any number in it."""
        widths = sum(int(digits) for digits in re.findall(r"[0-9]{1,18}", pattern))
        if "*" in pattern or re.search(r"\{[^}]*\{", pattern):
            widths += sum(
                map(_magnitude, values if isinstance(values, tuple | list) else (values,))
            )
        num_fields = pattern.count("%") + pattern.count("{")
        return len(pattern) + widths + num_fields * (widths + self._weight(values))

    def _check_product(self, left: Any, right: Any) -> None:
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, _SIZED):
                # Not by anything but a number: 'len * text' would be a text of that length.
                if not isinstance(times, int) or len(repeated) * times > MAX_REPEATED:
                    raise SecurityError(f"it repeats a text to more than {MAX_REPEATED} characters")
                self._spend(len(repeated) * max(0, times))
        if isinstance(left, int) and isinstance(right, int):
            num_bits = left.bit_length() + right.bit_length()
            if num_bits > _MAX_BITS:
                raise SecurityError("it makes too large a number")

    def _written(self, value: Any) -> Any:
        """A value that is to become text."""
        if not isinstance(value, str):
            self._spend(self._weight(value))
        return value

    def _weight(self, value: Any) -> int:
        allowance = getattr(self._current, "allowance", None)
        return weigh(value, MAX_MADE if allowance is None else allowance.left)


class _CodeGenerator(CodeGenerator):
    """Sends what the sandbox leaves to Python through the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        self.visit(node.node, frame)
        self.write(")[")
        self.visit(node.arg, frame)
        self.write("]")


def _size(value: Any) -> int:
    """Of a result: a text, or a list with its texts."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return _ELEMENT * len(value) + sum(len(item) for item in value if isinstance(item, str))
    return 0


def _magnitude(value: Any) -> int:
    """How much an argument may multiply."""
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, str | list | tuple | dict):
        return weigh(value, MAX_MADE)
    return 1
