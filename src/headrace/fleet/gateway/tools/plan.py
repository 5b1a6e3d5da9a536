"""Which of a request's tools are the gateway's: read once, before a model is asked."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headrace.core.errors import BadRequestError, UnavailableError
from headrace.fleet.gateway.tools.toolbox import ASKING, MCP, Toolbox, matches
from headrace.fleet.gateway.tools.values import Tool

#: Values of `tool_choice` that a model without tools satisfies.
_FREE: Final = (None, "auto", "none")


class ToolPlan(Struct, frozen=True, kw_only=True):
    """Tools that the gateway calls for one request, by name, and those that are its client's."""

    own: dict[str, Tool]
    others: tuple[dict[str, Any], ...]

    def functions(self) -> list[dict[str, Any]]:
        """All of them, as a chat completion declares functions."""
        return [*(tool.function for tool in self.own.values()), *self.others]


async def read_plan(
    toolbox: Toolbox, body: Mapping[str, Any], model: str, tenant: str
) -> ToolPlan | None:
    """The plan of a request; None where the gateway has nothing to call.

    Raises BadRequestError for a server or endpoint that is not configured, or that brings an address of its own, for
    what cannot be answered in rounds, and for a call that is required where there is nothing to call; UnavailableError
    for that where a server has no tools now.
    """
    entries = body.get("tools") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None  # whoever answers it says what is wrong
    asked = [entry for entry in entries if entry.get("type") in ASKING]
    for number, entry in enumerate(entries):
        if entry.get("type") in ASKING:
            _check(toolbox, entry, f"tools[{number}]")
    offers = toolbox.offers(model)
    in_one = _needs_one_round(body)
    if not asked and (not offers or in_one):
        return None
    if in_one:
        raise BadRequestError(
            f"'{in_one}': not together with tools that the gateway calls.", param=in_one
        )
    sources = None if offers else {_source(entry) for entry in asked}
    usable = await toolbox.usable(tenant, sources)
    own = {tool.name: tool for tool in usable if matches(tool.name, offers)}
    for entry in asked:
        own |= {tool.name: tool for tool in usable if _is_meant(entry, tool)}
    if not own and not asked:
        return None
    others = tuple(entry for entry in entries if entry.get("type") not in ASKING)
    if not own and not others and body.get("tool_choice") not in _FREE:
        raise await _nothing_to_call(toolbox, asked)
    taken = {_name(entry) for entry in others}
    return ToolPlan(
        own={name: tool for name, tool in own.items() if name not in taken}, others=others
    )


def _needs_one_round(body: Mapping[str, Any]) -> str:
    """The field for which a request cannot be answered in rounds; empty: there is none."""
    if body.get("n") not in (None, 1):
        return "n"
    return "background" if body.get("background") else ""


def _check(toolbox: Toolbox, entry: dict[str, Any], place: str) -> None:
    """Raises BadRequestError."""
    if entry.get("server_url") is not None or entry.get("connector_id") is not None:
        raise BadRequestError(
            "'tools': this gateway calls the tool servers that it was configured with, and no others.",
            param="tools",
        )
    is_server = entry["type"] == MCP
    what = "tool server" if is_server else "tool"
    field = f"{place}.server_label" if is_server else f"{place}.name"
    source = _source(entry)
    if not isinstance(source, str):
        raise BadRequestError(f"'{field}': expected the name of a {what}.", param=field)
    if not toolbox.knows(source):
        raise BadRequestError(f"'{field}': there is no {what} '{source[:100]}'.", param=field)
    _allowed(entry, place)


def _allowed(entry: dict[str, Any], place: str = "tools") -> list[str]:
    """Patterns of those tools of a source that the client wants called.

    What cannot be read is refused: it was to restrict. OpenAI's filter by `read_only` is, too: what a server says of its own
    tools is no promise.
    """
    allowed = entry.get("allowed_tools")
    if allowed is None:
        return ["*"]
    if isinstance(allowed, dict):  # OpenAI's longer form
        given = {name for name, value in allowed.items() if value is not None}
        allowed = allowed["tool_names"] if given == {"tool_names"} else None
    if not isinstance(allowed, list) or not all(isinstance(text, str) for text in allowed):
        field = f"{place}.allowed_tools"
        raise BadRequestError(
            f"'{field}': expected a list of names, or an object with 'tool_names' and nothing else.",
            param=field,
        )
    return allowed


async def _nothing_to_call(toolbox: Toolbox, asked: list[dict[str, Any]]) -> Exception:
    """Why a call that is required cannot be made."""
    for entry in asked:
        if not await toolbox.is_there(_source(entry)):
            return UnavailableError(
                f"The tool server '{_source(entry)}' has no tools at the moment, and 'tool_choice' requires a call."
            )
    return BadRequestError(
        "'tool_choice': a call is required, and of the tools that 'tools' asks for there is none, or none for this key.",
        param="tool_choice",
    )


def _is_meant(entry: dict[str, Any], tool: Tool) -> bool:
    return tool.source == _source(entry) and matches(tool.local_name, _allowed(entry))


def _source(entry: dict[str, Any]) -> Any:
    return entry.get("server_label" if entry["type"] == MCP else "name")


def _name(entry: dict[str, Any]) -> str:
    function = entry.get("function")
    named = function if isinstance(function, dict) else entry
    return str(named.get("name", ""))
