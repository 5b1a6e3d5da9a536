"""An answer's text → what is said, thought and called: reasoning first, then calls."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from headrace.completion.pieces import Piece, PieceReader, Said, Thought
from headrace.completion.reasoning.gpt_oss import Harmony
from headrace.completion.reasoning.think_tags import ThinkTags
from headrace.completion.tools.auto import AutoReader
from headrace.completion.tools.bare_json import BareJson
from headrace.completion.tools.forced import ForcedReader
from headrace.completion.tools.functiongemma import FunctionGemma
from headrace.completion.tools.mistral import Mistral
from headrace.completion.tools.pythonic import Pythonic
from headrace.completion.tools.syntax import Syntax
from headrace.completion.tools.tagged_json import TaggedJson
from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.core.errors import InternalError
from headrace.preprocess.reading import Reading, ToolReading
from headrace.preprocess.tools.frames import FRAMES

_SYNTAXES: Final[Mapping[ToolFormat, Callable[[], Syntax]]] = {
    ToolFormat.HERMES: TaggedJson,
    ToolFormat.SMOLLM2: TaggedJson,
    ToolFormat.LLAMA3_JSON: BareJson,
    ToolFormat.PYTHONIC: Pythonic,
    ToolFormat.MISTRAL: Mistral,
    ToolFormat.MISTRAL_ARGS: Mistral,
    ToolFormat.FUNCTIONGEMMA: FunctionGemma,
}


class _ThoughtReader(PieceReader, Protocol):
    """A reader that knows whether it is inside reasoning."""

    @property
    def is_thinking(self) -> bool: ...


class AnswerReader:
    """One answer, read as `PieceReader` promises."""

    def __init__(self, reading: Reading) -> None:
        """Raises InternalError for a format that is still to be chosen."""
        self._thoughts = _thought_reader(reading)
        is_harmony = isinstance(self._thoughts, Harmony)
        self._calls = _call_reader(reading.tools) if reading.tools and not is_harmony else None
        self._shows_thoughts = reading.reasoning is None or reading.reasoning.is_shown

    @property
    def is_full(self) -> bool:
        """As many calls as are allowed have been made."""
        reader = self._calls or self._thoughts
        return reader is not None and reader.is_full

    @property
    def is_thinking(self) -> bool:
        """The text that comes next is reasoning."""
        return self._thoughts is not None and self._thoughts.is_thinking

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._thoughts is None:
            return self._calls.feed(text) if self._calls is not None else [Said(text)]
        return self._read_said(self._thoughts.feed(text))

    def flush(self) -> list[Piece]:
        pieces = self._read_said(self._thoughts.flush()) if self._thoughts is not None else []
        if self._calls is not None:
            pieces += self._calls.flush()
        return pieces

    def _read_said(self, pieces: list[Piece]) -> list[Piece]:
        read: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Said) and self._calls is not None:
                read += self._calls.feed(piece.text)
            elif not isinstance(piece, Thought) or self._shows_thoughts:
                read.append(piece)
        return read


def _thought_reader(reading: Reading) -> _ThoughtReader | None:
    tools, reasoning = reading.tools, reading.reasoning
    if tools is not None and tools.format is ToolFormat.GPT_OSS:
        return Harmony(tools.names, max_calls=tools.max_calls)
    if reasoning is None or reasoning.format is ReasoningFormat.NONE:
        return None
    if reasoning.format is ReasoningFormat.THINK:
        return ThinkTags(is_open=reasoning.is_open)
    if reasoning.format is ReasoningFormat.GPT_OSS:
        return Harmony()
    raise InternalError(f"The reasoning format {reasoning.format.value} cannot be read.")


def _call_reader(tools: ToolReading) -> PieceReader:
    if tools.is_forced:
        return ForcedReader(FRAMES[tools.format], tools.names, max_calls=tools.max_calls)
    syntax = _SYNTAXES.get(tools.format)
    if syntax is None:
        raise InternalError(f"The tool format {tools.format.value} cannot be read.")
    return AutoReader(syntax(), frozenset(tools.names), max_calls=tools.max_calls)
