"""How many calls of one response may be made on the server's side: `max_tool_calls` of OpenAI's responses.

All of them count together over the whole response, the gateway's own and those that a replica makes itself; further attempts
of the model are ignored: https://platform.openai.com/docs/api-reference/responses/create. Calls that its client makes do not
count.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from headrace.core.errors import BadRequestError

_FIELD: Final = "max_tool_calls"
#: Items of an output that tell of a call that a replica has made itself.
_MADE: Final = frozenset(
    {
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
        "mcp_call",
    }
)  # fmt: skip
#: Beginnings of the types of tools that replicas call themselves; some have a date behind them.
_BUILT_IN: Final = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp")

Items = Sequence[dict[str, Any]]


class ServerCalls:
    """What one response has left of them."""

    def __init__(self, body: Mapping[str, Any], own: Container[str]) -> None:
        """`own` are the names of the gateway's tools. Raises BadRequestError."""
        given = body.get(_FIELD)
        is_count = isinstance(given, int) and not isinstance(given, bool) and given >= 0
        if given is not None and not is_count:
            raise BadRequestError(f"'{_FIELD}': expected a whole number from 0.", param=_FIELD)
        self.limit: int | None = given
        """None: the client has set none."""
        self._left = given
        self._own = own

    @property
    def are_over(self) -> bool:
        """No further one may be made."""
        return self._left == 0

    def take(self, calls: Items, output: Items) -> Items:
        """What may be made of a round's `calls` of the gateway's tools; its output tells what the replica made itself."""
        if self._left is None:
            return calls
        made = sum(str(item.get("type")) in _MADE for item in output)
        self._left = max(0, self._left - made)
        taken = calls[: self._left]
        self._left -= len(taken)
        return taken

    def bounded(self, body: dict[str, Any]) -> dict[str, Any]:
        """A round's request: with none left, only what the client calls itself may be called."""
        if self.limit is None:
            return body
        if self._left:
            return {**body, _FIELD: self._left}
        body = {name: value for name, value in body.items() if name != _FIELD}
        if "tools" not in body:
            return body
        clients = [tool for tool in body["tools"] if self._is_clients(tool)]
        if not clients:  # the tools stay, and with them what is cached of the prompt
            return {**body, "tool_choice": "none"}
        if body.get("tool_choice") is None:
            return {**body, "tools": clients}
        return {**body, "tools": clients, "tool_choice": self._choice(body["tool_choice"])}

    def told(self, response: dict[str, Any]) -> None:
        """Put what the client has set into its response: the last replica was told what was left of it."""
        if self.limit is not None:
            response[_FIELD] = self.limit

    def _choice(self, choice: Any) -> Any:
        """One that names no tool which is not there any more."""
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") != "allowed_tools":
            return choice if self._is_clients(choice) else "auto"
        named = choice.get("tools")
        named = (
            [tool for tool in named if self._is_clients(tool)] if isinstance(named, list) else []
        )
        return {**choice, "tools": named} if named else "none"

    def _is_clients(self, tool: Any) -> bool:
        """Its client calls it; what cannot be read is left to the replica."""
        if not isinstance(tool, dict):
            return True
        if tool.get("type") == "function":
            name = tool.get("name")
            return not isinstance(name, str) or name not in self._own
        return not str(tool.get("type")).startswith(_BUILT_IN)
