"""A tool as a model sees it, and what a call of it gave."""

from typing import Any, Final, Protocol

from msgspec import Struct


class Tool(Struct, frozen=True, kw_only=True):
    """One tool that may be called."""

    name: str
    """As models call it."""
    description: str
    parameters: dict[str, Any]
    """JSON Schema."""
    source: str
    """The configured server or endpoint, for metrics and logs."""
    local_name: str
    """Its name at its source."""

    @property
    def function(self) -> dict[str, Any]:
        """As a chat completion declares it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


class Result(Struct, frozen=True):
    """What a model is told of a call. A failure is told too: it may try otherwise."""

    text: str
    is_error: bool = False


#: What a model is told when it has had all calls that one request may have.
NO_MORE: Final = Result("No more tools may be called for this request.", True)


class Source(Protocol):
    """Where tools come from."""

    async def tools(self) -> tuple[Tool, ...]:
        """Those that may be called now; none while the source cannot be reached."""
        ...

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        """Never raises for what the source does."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


def cut(text: str, max_bytes: int, num_more: int | None = 0) -> str:
    """At most so many bytes of a result, with a word on what is missing. `num_more` bytes follow that were not read; None: nobody
    knows how many.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes and num_more == 0:
        return text
    kept = data[:max_bytes].decode("utf-8", "ignore")
    if num_more is None:
        return f"{kept}\n[the rest was cut off]"
    return f"{kept}\n[{max(0, len(data) - max_bytes) + num_more} bytes more were cut off]"


def too_long(max_bytes: int) -> str:
    """What is said of an answer that was not read to its end, and cannot be used without that."""
    return f"The answer has more than {max_bytes} bytes."
