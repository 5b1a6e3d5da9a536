"""Grammars made of parts: choices, and free text with constrained pieces in it (structural tags).

    text … <trigger>rest-of-begin CONTENT end … text

The text is free until a trigger is complete; then one of the tags that begin with it must follow. A tool
call is such a tag.
"""

import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.schemas import with_white_space


class Tag(Struct, frozen=True, kw_only=True):
    """A constrained piece of text."""

    begin: str
    """What it begins with; its first part is a trigger."""
    content: Grammar
    end: str


def choice(texts: Sequence[str]) -> Grammar:
    """One of these texts and nothing else."""
    return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(quote, texts)))


def tagged_text(
    tags: Sequence[Tag],
    triggers: Sequence[str],
    *,
    special_ids: Mapping[str, int] | None = None,
    is_required: bool = False,
    is_single: bool = False,
) -> Grammar:
    """Free text with any number of tags in it. Every `begin` starts with one of the triggers.

    `special_ids`: ids of triggers that are special tokens of the model, which plain text cannot spell.
    `is_required`: the answer is tags from its first character on, at least one, with no text around them.
    `is_single`: the answer ends with its first tag.
    """
    parts = _Parts(special_ids or {}, has_text=not is_required)
    segments = [parts.segment(trigger, tags) for trigger in _outermost(triggers)]
    either = " | ".join(segment for segment in segments if segment)
    if is_required:
        start = f"({either})" if is_single else f"({either})+"
    else:
        start = f"({either}) | text" if is_single else f"({either})* text"
    lines = [f"start: {start}", *parts.lines]
    if not is_required:
        lines += ["text: TEXT", r"TEXT: /(.|\n)*/"]
    return parts.bundle("\n".join(lines) + "\n")


def quote(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def embedded(grammar: Grammar, name: str) -> tuple[str, dict[str, str] | None]:
    """A grammar as a part of a Lark rule, and what must stand beside that under `name`, if anything.

    Raises ValueError for kinds that cannot be a part.
    """
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return f"%json {with_white_space(grammar).text}", None
    if grammar.kind is GrammarKind.REGEX:
        return f"/{_in_slashes(grammar.text)}/", None
    if grammar.kind is GrammarKind.LARK:
        return f"@{name}", {"name": name, "lark_grammar": grammar.text}
    raise ValueError(f"A grammar of kind {grammar.kind.value} cannot be a part of another.")


class _Parts:
    """Rules of a grammar in the making, and grammars that stand beside it."""

    def __init__(self, special_ids: Mapping[str, int], *, has_text: bool) -> None:
        self.lines: list[str] = []
        self._special_ids = special_ids
        self._has_text = has_text
        self._beside: list[dict[str, str]] = []
        self._num_segments = 0

    def segment(self, trigger: str, tags: Sequence[Tag]) -> str | None:
        """The name of a rule: text up to a trigger, and what may follow it. None when no tag has it."""
        mine = [tag for tag in tags if tag.begin.startswith(trigger)]
        if not mine:
            return None
        number = self._num_segments
        self._num_segments += 1
        bodies = " | ".join(self._body(tag, trigger) for tag in mine)
        if trigger in self._special_ids:
            text = "TEXT " if self._has_text else ""
            head = f"{text}<[{self._special_ids[trigger]}]>"
        elif self._has_text:
            head = f"trigger_{number}"
            self.lines.append(f"trigger_{number}[lazy]: TEXT {quote(trigger)}")
        else:
            head = quote(trigger)
        self.lines.append(f"tag_{number}: {head} ({bodies})")
        return f"tag_{number}"

    def bundle(self, lark: str) -> Grammar:
        """The whole: one grammar, or several where one refers to others."""
        if not self._beside:
            return Grammar(GrammarKind.LARK, lark)
        grammars = [{"name": "tags", "lark_grammar": lark}, *self._beside]
        return Grammar(GrammarKind.BUNDLE, json.dumps({"grammars": grammars}, ensure_ascii=False))

    def _body(self, tag: Tag, trigger: str) -> str:
        rest = tag.begin[len(trigger) :]
        parts = [quote(rest) if rest else "", self._content(tag.content)]
        parts.append(quote(tag.end) if tag.end else "")
        return " ".join(part for part in parts if part)

    def _content(self, grammar: Grammar) -> str:
        content, beside = embedded(grammar, f"content_{len(self._beside)}")
        if beside is not None:
            self._beside.append(beside)
        return content


def _outermost(triggers: Sequence[str]) -> list[str]:
    """Without triggers that begin with another one: that one always fires first."""
    unique = list(dict.fromkeys(triggers))
    return [
        trigger
        for trigger in unique
        if not any(trigger != other and trigger.startswith(other) for other in unique)
    ]


def _in_slashes(pattern: str) -> str:
    """A regular expression between slashes: its own are escaped, line breaks are written out."""
    escaped = re.sub(r"\\.|/", lambda m: "\\/" if m[0] == "/" else m[0], pattern, flags=re.DOTALL)
    return escaped.replace("\n", "\\n")
