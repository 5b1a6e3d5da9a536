"""Messages → prompt text, with the model's own Jinja template, as Hugging Face renders it.

The environment is the one that templates are written for: blocks trimmed, `break` and `continue`,
`raise_exception`, `strftime_now`, a `tojson` that keeps Unicode and HTML as they are, and
`{% generation %}`, which marks training data and means nothing here. A template comes with a model from
anywhere, so it runs in Jinja's immutable sandbox, and what it can make is bounded (`template_bounds.py`);
how often it goes over the messages is not.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ConfigError
from headrace.preprocess.special_text import free_mark
from headrace.preprocess.template_bounds import BoundedEnvironment

#: Characters that one prompt may have. A body has at most 16 MiB by default, and templates add little.
MAX_OUTPUT: Final = 64 * 1024 * 1024
#: Numbers that all `range` calls of one rendering may give; real templates need a few dozen.
MAX_RANGE_TOTAL: Final = 1_000_000

#: The turn marks of ChatML, for a model that has the tokens and no template.
CHATML: Final = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

#: Whatever a template's expressions can raise when the messages are not what it expects.
_RENDER_ERRORS: Final = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    AssertionError,
)
#: `tools` as a variable of the template.
_TOOLS: Final = re.compile(r"\btools\b")
_PROBE: Final = "x0probe0x"
_RESERVED: Final = frozenset({"messages", "tools", "raise_exception", "strftime_now", "range"})


class ChatTemplate:
    """One compiled template. Safe to use from several threads.

    `special` gives `bos_token` and the like to the template; those that the model lacks are left out.
    """

    def __init__(self, source: str, special: Mapping[str, str | None], clock: Clock) -> None:
        self._environment = environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.bound_filters()
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime(clock)
        try:
            with environment.rendering():
                self._template = environment.from_string(source)
        except (TemplateSyntaxError, RecursionError) as error:
            raise ConfigError(f"The chat template cannot be compiled: {error}.") from error
        self._special = {name: text for name, text in special.items() if text is not None}
        self.source: Final = source
        self.knows_developer: Final = "developer" in source
        self.knows_tools: Final = _TOOLS.search(source) is not None
        """It writes out tools that it is given."""

    @cached_property
    def takes_system(self) -> bool:
        """It writes out a system message, found by trying."""
        return _PROBE in self._try([_say("system", _PROBE), _say("user", "?")])

    @cached_property
    def wants_text_arguments(self) -> bool:
        """It adds the arguments of calls to text, and does not write them as JSON itself; found by trying."""
        written = f'{{"{_PROBE}": 1}}'
        if written.replace(" ", "") in self._try(_calling({_PROBE: 1})).replace(" ", ""):
            return False
        return written in self._try(_calling(written))

    def _try(self, messages: list[dict[str, Any]]) -> str:
        try:
            return self.render(messages, add_generation_prompt=False)
        except BadRequestError:
            return ""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. Raises BadRequestError for messages that the template refuses or cannot render.

        With `continue_final_message` the prompt ends with the last message's text, for the model to go on.
        """
        if continue_final_message:
            messages, mark = _mark_end(messages)
            rendered = self.render(messages, tools=tools, add_generation_prompt=False, extra=extra)
            return _cut_at(rendered, mark)
        extra = extra or {}
        if taken := _RESERVED & extra.keys():
            raise BadRequestError(
                f"'chat_template_kwargs' must not set '{min(taken)}'.", param="chat_template_kwargs"
            )
        values = {
            **self._special,
            **extra,
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "range": _BoundedRange(),
        }
        try:
            with self._environment.rendering():
                return self._write(values)
        except _RENDER_ERRORS as error:
            raise BadRequestError(
                f"The model's chat template cannot render these messages: {_reason(error)}.",
                param="messages",
            ) from error

    def _write(self, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(values):
            size += len(piece)
            if size > MAX_OUTPUT:
                raise SecurityError(f"it writes more than {MAX_OUTPUT} characters")
            pieces.append(piece)
        return "".join(pieces)


def choose_template(
    templates: Mapping[str, str], *, has_chatml: bool, with_tools: bool
) -> str | None:
    """The source to use of those that a model brings; ChatML where it has the tokens and no template."""
    named = (templates.get("tool_use") if with_tools else None) or templates.get("default")
    return named or (CHATML if has_chatml else None)


def _say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _calling(arguments: Any) -> list[dict[str, Any]]:
    """A conversation with a call."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [_say("user", "?"), {**_say("assistant", ""), "tool_calls": [call]}]


class _BoundedRange:
    """`range` with a budget over all calls of one rendering, so that nested loops end too."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_TOTAL

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        # `len` of a huge range overflows, which is a refusal as well.
        self._left -= len(numbers)
        if self._left < 0:
            raise SecurityError(f"it loops over more than {MAX_RANGE_TOTAL} numbers")
        return numbers


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: the body, unchanged."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime(clock: Clock) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        # Local time without a zone, as Hugging Face has it.
        return datetime.fromtimestamp(clock.wall()).strftime(pattern)

    return strftime_now


def _reason(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _mark_end(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with a mark and a space behind the last one's text, and the mark."""
    content = messages[-1].get("content") if messages else None
    mark = free_mark(messages)
    if not isinstance(content, str) or not content.strip() or mark is None:
        raise BadRequestError(
            "'continue_final_message' needs a last message with text.",
            param="continue_final_message",
        )
    return [*messages[:-1], {**messages[-1], "content": f"{content}{mark} "}], mark


def _cut_at(text: str, mark: str) -> str:
    """What is before the mark; without trailing space where the template trims messages."""
    place = text.rfind(mark)
    if place < 0:
        raise BadRequestError(
            "'continue_final_message' cannot be used: the chat template does not write out the last "
            "message.",
            param="continue_final_message",
        )
    is_kept = text.startswith(f"{mark} ", place)
    return text[:place] if is_kept else text[:place].rstrip()
