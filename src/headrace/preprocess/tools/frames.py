"""How each format writes a call that is forced: fixed text around arguments that are JSON.

The grammar of a forced call and the reader of its text are both made from this, so they cannot disagree.

    opening  head NAME middle ARGUMENTS tail  [between head NAME middle ARGUMENTS tail]…  closing
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from headrace.config.server import ToolFormat


class Frame(Struct, frozen=True, kw_only=True):
    """The fixed text of one format."""

    opening: str = ""
    head: str
    middle: str
    tail: str
    between: str = ""
    closing: str = ""

    def begin(self, name: str) -> str:
        """What stands before the arguments of a call of this tool."""
        return self.head + name + self.middle


_TAGGED: Final = Frame(
    head='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    tail="}\n</tool_call>",
    between="\n",
)

#: JSON stands for a dictionary literal in Python, so pythonic calls take their arguments from one.
FRAMES: Final[Mapping[ToolFormat, Frame]] = MappingProxyType(
    {
        ToolFormat.HERMES: _TAGGED,
        ToolFormat.SMOLLM2: Frame(
            opening="<tool_call>[",
            head='{"name": "',
            middle='", "arguments": ',
            tail="}",
            between=", ",
            closing="]</tool_call>",
        ),
        ToolFormat.LLAMA3_JSON: Frame(
            head='{"name": "', middle='", "parameters": ', tail="}", between="; "
        ),
        ToolFormat.PYTHONIC: Frame(
            opening="[", head="", middle="(**", tail=")", between=", ", closing="]"
        ),
        ToolFormat.MISTRAL: Frame(
            opening="[TOOL_CALLS][",
            head='{"name": "',
            middle='", "arguments": ',
            tail="}",
            between=", ",
            closing="]",
        ),
        ToolFormat.MISTRAL_ARGS: Frame(head="[TOOL_CALLS]", middle="[ARGS]", tail=""),
        ToolFormat.FUNCTIONGEMMA: Frame(
            head="<start_function_call>call:", middle="", tail="<end_function_call>"
        ),
        ToolFormat.GPT_OSS: Frame(
            head="<|channel|>commentary to=functions.",
            middle=" <|constrain|>json<|message|>",
            tail="",
        ),
    }
)

#: Texts that are special tokens in some models: they are kept in the answer where it is read for calls.
MARKS: Final[Mapping[ToolFormat, tuple[str, ...]]] = MappingProxyType(
    {
        ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
        ToolFormat.SMOLLM2: ("<tool_call>", "</tool_call>"),
        ToolFormat.LLAMA3_JSON: ("<|python_tag|>",),
        ToolFormat.PYTHONIC: ("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
        ToolFormat.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        ToolFormat.MISTRAL_ARGS: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        ToolFormat.FUNCTIONGEMMA: ("<start_function_call>", "<end_function_call>", "<escape>"),
        ToolFormat.GPT_OSS: (),
    }
)
