"""Which of a request's tools are the gateway's: read once, before a model is asked."""

from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from headrace.core.errors import BadRequestError
from headrace.fleet.gateway.tools.toolbox import ASKING, MCP, Toolbox
from headrace.fleet.gateway.tools.values import Tool


class ToolPlan(Struct, frozen=True, kw_only=True):
    """Tools that the gateway calls for one request, by name, and those that are its client's."""

    own: dict[str, Tool]
    others: tuple[dict[str, Any], ...]

    def functions(self) -> list[dict[str, Any]]:
        """All of them, as a chat completion declares functions."""
        return [*(tool.function for tool in self.own.values()), *self.others]


async def read_plan(toolbox: Toolbox, tools: object, model: str, tenant: str) -> ToolPlan | None:
    """The plan of a request with this `tools` field; None where the gateway has nothing to call.

    Raises BadRequestError for a server or endpoint that is not configured, or that brings an address of its own.
    """
    entries = (
        [entry for entry in tools if isinstance(entry, dict)] if isinstance(tools, list) else []
    )
    asked = [entry for entry in entries if entry.get("type") in ASKING]
    usable = await toolbox.all(tenant)
    own = {tool.name: tool for tool in toolbox.offered(model, usable)}
    for entry in asked:
        own |= {tool.name: tool for tool in _asked(toolbox, entry, usable)}
    if not own and not asked:
        return None
    others = tuple(entry for entry in entries if entry.get("type") not in ASKING)
    taken = {_name(entry) for entry in others}
    return ToolPlan(
        own={name: tool for name, tool in own.items() if name not in taken}, others=others
    )


def _asked(toolbox: Toolbox, entry: dict[str, Any], usable: tuple[Tool, ...]) -> list[Tool]:
    source = entry.get("server_label" if entry["type"] == MCP else "name")
    if entry.get("server_url") is not None:
        raise BadRequestError(
            "'tools': this gateway calls the tool servers that it was configured with, and no others.",
            param="tools",
        )
    if not isinstance(source, str) or not toolbox.knows(source):
        raise BadRequestError(f"'tools': there is no tool server '{source}'.", param="tools")
    allowed = entry.get("allowed_tools")
    patterns = allowed if isinstance(allowed, list) else ["*"]
    return [
        tool
        for tool in usable
        if tool.source == source
        and any(isinstance(p, str) and fnmatchcase(tool.local_name, p) for p in patterns)
    ]


def _name(entry: dict[str, Any]) -> str:
    function = entry.get("function")
    named = function if isinstance(function, dict) else entry
    return str(named.get("name", ""))
