"""How the text of an answer is to be read: decided with the prompt, used by `completion`."""

from msgspec import Struct

from headrace.config.server import ReasoningFormat, ToolFormat


class ToolReading(Struct, frozen=True, kw_only=True):
    """The answer may call tools."""

    format: ToolFormat
    names: tuple[str, ...]
    """Tools that were offered."""
    is_forced: bool = False
    """The grammar lets nothing but calls through, so they can be told while they are written."""
    max_calls: int | None = None
    is_legacy: bool = False
    """The client speaks of `functions`, as before there were tools."""


class ReasoningReading(Struct, frozen=True, kw_only=True):
    """The answer may begin with reasoning."""

    format: ReasoningFormat
    is_open: bool = False
    """The prompt ends inside it."""
    is_shown: bool = True


class Reading(Struct, frozen=True, kw_only=True):
    """Nothing set: the text is the answer."""

    tools: ToolReading | None = None
    reasoning: ReasoningReading | None = None
    marks: frozenset[int] = frozenset()
    """Special tokens whose text is read, although it would be left out of the answer."""

    @property
    def is_plain(self) -> bool:
        """There is nothing to look for."""
        return self.tools is None and self.reasoning is None
