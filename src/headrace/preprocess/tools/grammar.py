"""The grammar of an answer that must be, or may hold, calls of tools.

    forced:  [reasoning] opening call (between call)* closing
    strict:  (text call)* text, where a call that begins is a good one

Written in llguidance's Lark. Text of the frame that is a special token of the model is named by its id, because a
grammar's texts are made of ordinary tokens only.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.tags import embedded
from headrace.preprocess.reading import ReasoningReading
from headrace.preprocess.tools.frames import FRAMES, Frame
from headrace.preprocess.tools.offer import Mode, Offer, Tool
from headrace.preprocess.tools.schema import narrow

#: Calls in one forced answer: a model that does not know when to stop comes to an end.
MAX_FORCED_CALLS: Final = 16
_LAYOUT: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_ANY: Final = r"/(.|\n)*/"


def call_grammar(
    offer: Offer,
    kind: ToolFormat,
    reasoning: ReasoningReading | None,
    special: Mapping[str, int],
) -> Grammar | None:
    """What bounds the answer; None where it is free. `special` has the ids of special tokens."""
    frame = FRAMES[kind]
    writer = _Writer(special)
    if offer.mode is Mode.REQUIRED:
        rules = _forced(offer, frame, writer)
        rules = _thinking(reasoning, writer) + rules
        return Grammar(GrammarKind.LARK, "\n".join(rules))
    if any(tool.is_strict for tool in offer.callable_tools):
        rules = _guarded(offer, frame, writer)
        return Grammar(GrammarKind.LARK, "\n".join(rules)) if rules else None
    return None


def bounded_answer(
    grammar: Grammar,
    reasoning: ReasoningReading | None,
    special: Mapping[str, int],
    calls: tuple[Offer, ToolFormat] | None = None,
) -> Grammar:
    """The same grammar for what is said: the model may reason first, and may make calls instead.

    Unchanged where it does neither, or where the grammar cannot be part of another.
    """
    reasons = reasoning is not None and reasoning.format is ReasoningFormat.THINK
    if not reasons and calls is None:
        return grammar
    try:
        content, beside = embedded(grammar, "answer_text")
    except ValueError:
        return grammar
    writer = _Writer(special)
    rules = _thinking(reasoning if reasons else None, writer)
    if calls is None:
        rules.append(f"calls: {content}")
    else:
        offer, kind = calls
        rules += [f"answer: {content}", "calls: answer | called"]
        rules += _forced(offer, FRAMES[kind], writer, name="called")
    lark = "\n".join(rules)
    if beside is None:
        return Grammar(GrammarKind.LARK, lark)
    grammars = [{"name": "whole", "lark_grammar": lark}, beside]
    return Grammar(GrammarKind.BUNDLE, json.dumps({"grammars": grammars}, ensure_ascii=False))


def schema_of(tool: Tool) -> dict[str, Any]:
    """What the arguments of a call fulfil: always an object, without properties that nobody named."""
    if not tool.parameters.get("properties") and not tool.parameters.keys() - {
        "type", "properties", "required", "title", "description",
    }:  # fmt: skip
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {**narrow(tool.parameters), "type": "object"}


class _Writer:
    """Fixed text as Lark: quoted, with special tokens by id."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        texts = sorted(special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def text(self, text: str) -> str:
        parts: list[str] = []
        done = 0
        for match in self._pattern.finditer(text):
            parts += [_quoted(text[done : match.start()]), f"<[{self._special[match[0]]}]>"]
            done = match.end()
        parts.append(_quoted(text[done:]))
        return " ".join(part for part in parts if part)

    def is_special(self, text: str) -> bool:
        """The text is one special token."""
        return text in self._special

    def call(self, tool: Tool, frame: Frame, *, skip: str = "") -> str:
        """One call, without `skip` at its beginning."""
        # As with OpenAI, only `strict` refuses a schema with keywords that cannot be enforced.
        layout = {**_LAYOUT, "lenient": not tool.is_strict, "coerce_one_of": True}
        schema = {"x-guidance": layout, **schema_of(tool)}
        parts = (
            self.text(frame.begin(tool.name).removeprefix(skip)),
            f"%json {json.dumps(schema, ensure_ascii=False)}",
            self.text(frame.tail),
        )
        return " ".join(part for part in parts if part)


def _forced(offer: Offer, frame: Frame, writer: _Writer, name: str = "calls") -> list[str]:
    tools = offer.callable_tools
    rules = [f"call_{number}: {writer.call(tool, frame)}" for number, tool in enumerate(tools)]
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
    more = ""
    if offer.max_calls != 1:
        between = writer.text(frame.between)
        rules.append(f"more: {between} call" if between else "more: call")
        more = f"more{{0,{(offer.max_calls or MAX_FORCED_CALLS) - 1}}}"
    parts = (writer.text(frame.opening), "call", more, writer.text(frame.closing))
    rules.append(f"{name}: " + " ".join(part for part in parts if part))
    return rules


def _thinking(reasoning: ReasoningReading | None, writer: _Writer) -> list[str]:
    """The rule `start`: reasoning may, or where the prompt has opened it must, come before the calls."""
    if reasoning is None or reasoning.format is ReasoningFormat.NONE:
        return ["start: calls"]
    if reasoning.format is ReasoningFormat.GPT_OSS:
        begin, end, behind = "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"
        space = writer.text(behind)
    else:
        begin, end, space = "<think>", "</think>", r"/\n{0,2}/"
    if writer.is_special(end):
        rules = [f"thought: {_ANY} {writer.text(end)} {space}"]
    else:
        rules = [f"thought_text[lazy]: {_ANY} {_quoted(end)}", f"thought: thought_text {space}"]
    if reasoning.is_open:
        return ["start: thought calls", *rules]
    return [f"start: ({writer.text(begin)} thought)? calls", *rules]


def _guarded(offer: Offer, frame: Frame, writer: _Writer) -> list[str]:
    """Free text in which a call that begins is a good one; nothing where calls have no mark."""
    lead = frame.opening + frame.head
    mark = next((text for text in _MARKS if lead.startswith(text)), None)
    if mark is None:
        return []
    tools = offer.callable_tools
    first = [
        f"first_{number}: {writer.text(frame.opening.removeprefix(mark))} "
        f"{writer.call(tool, frame, skip='' if frame.opening else mark)}"
        for number, tool in enumerate(tools)
    ]
    again = [f"call_{number}: {writer.call(tool, frame)}" for number, tool in enumerate(tools)]
    options = " | ".join(f"first_{number}" for number in range(len(tools)))
    rules = [*first, f"first: {options}"]
    closing = writer.text(frame.closing)
    if frame.opening:
        rules += [*again, "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
        body = f"first ({writer.text(frame.between)} call)* {closing}"
    else:
        body = f"first {closing}"
    if writer.is_special(mark):
        block = [f"block: TEXT {writer.text(mark)} {body}"]
    else:
        block = [f"lead[lazy]: TEXT {_quoted(mark)}", f"block: lead {body}"]
    return ["start: block* rest", "rest: TEXT", f"TEXT: {_ANY}", *block, *rules]


#: What a call begins with, where that is told from text.
_MARKS: Final = ("<tool_call>", "[TOOL_CALLS]", "<start_function_call>")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
