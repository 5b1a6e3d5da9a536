"""Which of a request's tools are the gateway's: read once, before a model is asked."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.core.errors import BadRequestError
from headrace.fleet.gateway.tools.toolbox import ASKING, MCP, Toolbox, matches
from headrace.fleet.gateway.tools.values import Tool


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

    Raises BadRequestError for a server or endpoint that is not configured, or that brings an address of its own, and
    for what cannot be answered in rounds.
    """
    entries = body.get("tools") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None  # whoever answers it says what is wrong
    asked = [entry for entry in entries if entry.get("type") in ASKING]
    for entry in asked:
        _check(toolbox, entry)
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
    taken = {_name(entry) for entry in others}
    return ToolPlan(
        own={name: tool for name, tool in own.items() if name not in taken}, others=others
    )


def _needs_one_round(body: Mapping[str, Any]) -> str:
    """The field for which a request cannot be answered in rounds; empty: there is none."""
    if body.get("n") not in (None, 1):
        return "n"
    return "background" if body.get("background") else ""


def _check(toolbox: Toolbox, entry: dict[str, Any]) -> None:
    source = _source(entry)
    if entry.get("server_url") is not None or entry.get("connector_id") is not None:
        raise BadRequestError(
            "'tools': this gateway calls the tool servers that it was configured with, and no others.",
            param="tools",
        )
    if not isinstance(source, str) or not toolbox.knows(source):
        raise BadRequestError(f"'tools': there is no tool server '{source}'.", param="tools")


def _is_meant(entry: dict[str, Any], tool: Tool) -> bool:
    allowed = entry.get("allowed_tools")
    if isinstance(allowed, dict):  # OpenAI's longer form
        allowed = allowed.get("tool_names")
    patterns = allowed if isinstance(allowed, list) else ["*"]
    return tool.source == _source(entry) and matches(
        tool.local_name, [text for text in patterns if isinstance(text, str)]
    )


def _source(entry: dict[str, Any]) -> Any:
    return entry.get("server_label" if entry["type"] == MCP else "name")


def _name(entry: dict[str, Any]) -> str:
    function = entry.get("function")
    named = function if isinstance(function, dict) else entry
    return str(named.get("name", ""))
