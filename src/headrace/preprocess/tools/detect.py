"""Which formats a model speaks, told from its chat template."""

import re
from typing import Final

from headrace.config.server import ReasoningFormat, ToolFormat

#: What only templates of a format hold, the more telling first.
_TOOL_SIGNS: Final = (
    (r"<start_function_call>", ToolFormat.FUNCTIONGEMMA),
    (r"<\|channel\|>", ToolFormat.GPT_OSS),
    (r"\[ARGS\]", ToolFormat.MISTRAL_ARGS),
    (r"\[TOOL_CALLS\]", ToolFormat.MISTRAL),
    (r"func_name1\(params_name1|<\|python_start\|>", ToolFormat.PYTHONIC),
    (r"<\|python_tag\|>|<\|start_header_id\|>", ToolFormat.LLAMA3_JSON),
    (r"SmolLM, trained by Hugging Face", ToolFormat.SMOLLM2),
    (r"<tool_call>", ToolFormat.HERMES),
)
_REASONING_SIGNS: Final = (
    (r"<\|channel\|>", ReasoningFormat.GPT_OSS),
    (r"</?think>", ReasoningFormat.THINK),
)


def tool_format(wanted: ToolFormat, template: str) -> ToolFormat:
    """The operator's, or the template's; a model that was taught none is shown Hermes' by us."""
    if wanted is not ToolFormat.AUTO:
        return wanted
    found = (kind for sign, kind in _TOOL_SIGNS if re.search(sign, template))
    return next(found, ToolFormat.HERMES)


def reasoning_format(
    wanted: ReasoningFormat, template: str, *, has_think_token: bool
) -> ReasoningFormat:
    """The operator's, or the template's, or the vocabulary's; none for most models."""
    if wanted is not ReasoningFormat.AUTO:
        return wanted
    found = (kind for sign, kind in _REASONING_SIGNS if re.search(sign, template))
    default = ReasoningFormat.THINK if has_think_token else ReasoningFormat.NONE
    return next(found, default)
