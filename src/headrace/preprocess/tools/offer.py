"""The tools that a request offers, and whether the model may, must or must not call them."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from headrace.api.chat import ChatRequest
from headrace.core.errors import BadRequestError
from headrace.preprocess.tools.schema import check_schema

MAX_TOOLS: Final = 128
MAX_NAME: Final = 128
#: OpenAI takes letters, digits, `_` and `-`; MCP servers have names with dots, colons and slashes.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]+", re.ASCII)


class Tool(Struct, frozen=True, kw_only=True):
    """One function."""

    name: str
    parameters: dict[str, Any]
    """A JSON schema of an object; empty where none was given."""
    is_strict: bool
    plain: dict[str, Any]
    """As the chat template gets it."""


class Mode(StrEnum):
    """What the model may do."""

    AUTO = "auto"
    REQUIRED = "required"


class Offer(Struct, frozen=True, kw_only=True):
    """All tools of a request, as far as they may be called."""

    tools: tuple[Tool, ...]
    mode: Mode
    callable_names: tuple[str, ...]
    """Those that may be called; the model is shown all of them."""
    max_calls: int | None
    is_legacy: bool

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Tools that may be called."""
        return tuple(tool for tool in self.tools if tool.name in self.callable_names)

    @property
    def plain(self) -> list[dict[str, Any]]:
        """The tools as the chat template gets them."""
        return [tool.plain for tool in self.tools]


def read_offer(request: ChatRequest) -> Offer | None:
    """None where nothing is offered, or nothing may be called. Raises BadRequestError by field."""
    is_legacy = not request.tools and bool(request.functions)
    where, choice = "tool_choice", request.tool_choice
    if is_legacy:
        where, choice = "function_call", request.function_call
        given = [
            _read_function(item, f"functions[{place}]", {"type": "function", "function": item})
            for place, item in enumerate(_bounded(request.functions or [], "functions"))
        ]
    else:
        given = [
            _read_tool(item, f"tools[{place}]")
            for place, item in enumerate(_bounded(request.tools or [], "tools"))
        ]
    _check_unique(given, "functions" if is_legacy else "tools")
    mode, names = _read_choice(choice, tuple(tool.name for tool in given), where)
    if mode is None or not given:
        return None
    is_named = len(names) == 1 and mode is Mode.REQUIRED and isinstance(choice, dict)
    return Offer(
        tools=tuple(given),
        mode=mode,
        callable_names=names,
        max_calls=1 if is_named or is_legacy or request.parallel_tool_calls is False else None,
        is_legacy=is_legacy,
    )


def _bounded(items: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    if len(items) > MAX_TOOLS:
        raise _fault(where, f"has {len(items)} functions; at most {MAX_TOOLS} are taken")
    return items


def _read_tool(item: Mapping[str, Any], place: str) -> Tool:
    if item.get("type", "function") != "function":
        raise _fault(f"{place}.type", "must be 'function'; no other tools are run here")
    function = item.get("function")
    if not isinstance(function, dict):
        raise _fault(f"{place}.function", "must be an object with a name")
    return _read_function(function, f"{place}.function", {**item, "type": "function"})


def _read_function(function: Mapping[str, Any], place: str, plain: dict[str, Any]) -> Tool:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise _fault(
            f"{place}.name",
            f"must be 1 to {MAX_NAME} letters, digits, or any of _ . : / -",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise _fault(f"{place}.description", "must be a text")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _fault(f"{place}.strict", "must be true or false")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {}
    where = f"{place}.parameters"
    if not isinstance(parameters, dict):
        raise _fault(where, "must be a JSON schema, which is an object")
    check_schema(parameters, where)
    if parameters.get("type", "object") != "object":
        raise _fault(f"{where}.type", "must be 'object': arguments have names")
    return Tool(name=name, parameters=parameters, is_strict=bool(strict), plain=plain)


def _check_unique(tools: Sequence[Tool], where: str) -> None:
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            name = (
                f"{where}[{place}].name"
                if where == "functions"
                else f"{where}[{place}].function.name"
            )
            raise _fault(name, f"'{tool.name}' is offered twice")
        seen.add(tool.name)


def _read_choice(
    choice: Any, names: tuple[str, ...], where: str
) -> tuple[Mode | None, tuple[str, ...]]:
    """None: no calls; and the names that may be called."""
    if choice is None or choice == "auto":
        return Mode.AUTO, names
    if choice == "none":
        return None, ()
    if choice in ("required", "any") and where == "tool_choice":
        _need_tools(names, where)
        return Mode.REQUIRED, names
    if not isinstance(choice, dict):
        words = "none, auto, required" if where == "tool_choice" else "none, auto"
        raise _fault(where, f"must be {words}, or an object that names a function")
    _need_tools(names, where)
    if choice.get("type") == "allowed_tools":
        return _read_allowed(choice.get("allowed_tools", choice), names, where)
    return Mode.REQUIRED, (_read_name(choice, names, where),)


def _read_allowed(
    allowed: Any, names: tuple[str, ...], where: str
) -> tuple[Mode | None, tuple[str, ...]]:
    """OpenAI's `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`."""
    place = f"{where}.allowed_tools"
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list) or not tools or not all(isinstance(t, dict) for t in tools):
        raise _fault(f"{place}.tools", "must be a list of at least one tool")
    if allowed.get("mode") not in ("auto", "required"):
        raise _fault(f"{place}.mode", "must be auto or required")
    found = [
        _read_name(tool, names, f"{place}.tools[{number}]") for number, tool in enumerate(tools)
    ]
    return Mode(allowed["mode"]), tuple(dict.fromkeys(found))


def _read_name(choice: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    place = f"{where}.name"
    name = choice.get("name")
    if where != "function_call" and "function" in choice:
        place = f"{where}.function.name"
        function = choice["function"]
        name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _fault(place, "must be the name of a function")
    if name not in names:
        raise _fault(place, f"'{name[:MAX_NAME]}' is not one of the functions that are offered")
    return name


def _need_tools(names: tuple[str, ...], where: str) -> None:
    if not names:
        raise _fault(where, "asks for a call, but no functions are offered")


def _fault(place: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{place}': {what}.", param=place)
