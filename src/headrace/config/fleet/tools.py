"""Tools that the gateway calls itself: servers of the Model Context Protocol, and plain HTTP endpoints."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.config.fleet.names import may_fit, no_such
from headrace.config.fleet.urls import check_url
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,30}$")]


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server of tools. Clients name it in `{"type": "mcp", "server_label": NAME}`; they cannot bring servers of their own."""

    name: Name
    """Its tools are called NAME__TOOL by models."""
    url: str | None = None
    """Address of a server that speaks Streamable HTTP."""
    command: tuple[str, ...] = ()
    """Or a program and its arguments, started by the gateway, that speaks over stdin and stdout."""
    env: dict[str, Secret] = {}
    """Variables of that program; of the gateway's own it gets PATH, HOME, LOGNAME, USER, SHELL and TERM only."""
    headers: dict[str, Secret] = {}
    """Sent to the address."""
    allow: tuple[str, ...] = ("*",)
    """Its tools that may be called, with * for any text."""
    timeout: Seconds = 30.0
    """Seconds that one call may take."""
    max_result: Bytes = 64 * 1024
    """Bytes of a result that a model gets; the rest is cut off, and said so."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if (self.url is None) == (not self.command):
            raise ConfigError(
                f"The tool server '{self.name}' needs a url or a command, and one of them."
            )
        if self.url is not None:
            check_url(f"the tool server '{self.name}'", self.url)


class HttpMethod(StrEnum):
    """How a tool is called."""

    GET = "GET"
    """Arguments in the query."""
    POST = "POST"
    """Arguments as a JSON body."""


class HttpTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One endpoint as a tool. Clients name it in `{"type": "gateway", "name": NAME}`."""

    name: Name
    description: str
    """For the model: what it does, and when to use it."""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """JSON Schema of its arguments."""
    url: str
    method: HttpMethod = HttpMethod.POST
    """GET or POST."""
    headers: dict[str, Secret] = {}
    timeout: Seconds = 30.0
    """Seconds that one call may take."""
    max_result: Bytes = 64 * 1024
    """Bytes of a result that a model gets."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        check_url(f"the tool '{self.name}'", self.url)


class Grant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use which tools. With any grant for a tool, only those that are named may use it."""

    tools: tuple[str, ...]
    """Names as models call them (SERVER__TOOL or NAME), with * for any text."""
    tenants: tuple[str, ...] = ()
    """Tenants that may."""


class Offer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tools that requests for some models get without asking for them."""

    models: tuple[str, ...]
    """Names that clients ask for, with * for any text."""
    tools: tuple[str, ...]
    """Names as models call them, with * for any text."""


class ToolsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tool loop for chat completions and responses."""

    servers: tuple[McpServer, ...] = ()
    http: tuple[HttpTool, ...] = ()
    grants: tuple[Grant, ...] = ()
    offers: tuple[Offer, ...] = ()
    max_rounds: Annotated[int, Meta(ge=1, le=100)] = 8
    """Times that a model is asked for one request; the last time it may call no tool."""
    max_calls: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Calls of tools for one request; further ones are told so."""
    timeout: Seconds = 600.0
    """Seconds for one request in all, every round and every call of it included."""
    parallel: Annotated[int, Meta(ge=1, le=64)] = 4
    """Calls of one round that run at once."""

    def __post_init__(self) -> None:
        """Raises ConfigError for two tools or servers of one name, and for grants and offers of tools that there are not."""
        servers, tools = [s.name for s in self.servers], [tool.name for tool in self.http]
        if len({*servers, *tools}) < len(servers) + len(tools):
            raise ConfigError("Two tools or tool servers have the same name.")
        known, prefixes = [*tools, *(f"{s}__*" for s in servers)], [f"{s}__" for s in servers]
        named = [(f"grants[{at}]", grant.tools) for at, grant in enumerate(self.grants)]
        named += [(f"offers[{at}]", offer.tools) for at, offer in enumerate(self.offers)]
        for place, patterns in named:
            for number, pattern in enumerate(patterns):
                if not may_fit(pattern, tools, prefixes):
                    raise ConfigError(
                        no_such("tool", pattern, known), place=f"{place}.tools[{number}]"
                    )
