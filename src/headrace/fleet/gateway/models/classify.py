"""How hard a prompt is, from named features of its text: no model, well under a millisecond, and it can say why.

Only the question, which is the last user message, is looked at closely, and of a long one its beginning and its end: that is
where people say what they want. Words are those of several languages; a text in a language that has none here is
rated by its length, code, formulas and structure alone.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from headrace.config.fleet.models import ClassifierConfig
from headrace.fleet.gateway.models import words

#: Characters looked at, at each end of the question.
_WINDOW: Final = 1_500
_CHARS_PER_TOKEN: Final = 4.0

_AROUND_WORDS: Final = "\"'`.,;:!?()[]{}<>*#…«»„“”‘’¿¡。，、？！"
# No \s after ^: it takes line ends too, and a page of empty lines would cost their square.
_ITEM: Final = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)、])\s?", re.MULTILINE)
_CODE_LINE: Final = re.compile(
    r"[;{}][ \t]*$|^[ \t]*(?:def|class|import|from|#include|SELECT|func|fn|public|const|let|var)\s",
    re.MULTILINE,
)
#: Starts with a set of characters, which the engine skips to: half a millisecond less than with a word before it.
_RELATION: Final = re.compile(r"[=^\\][-\s]?[\w(]")
_SYMBOLS: Final = "$∑∫∏√≤≥≠≈∂∇∈∀∃⇒→∞±"


class Features(Struct, frozen=True, kw_only=True):
    """Each between 0 and 1; the names are those of the weights in `ClassifierConfig`."""

    length: float = 0.0
    context: float = 0.0
    code: float = 0.0
    mathematics: float = 0.0
    reasoning: float = 0.0
    steps: float = 0.0
    structure: float = 0.0
    simple: float = 0.0


class Complexity(Struct, frozen=True, kw_only=True):
    """0 is trivial, 1 as hard as it gets."""

    score: float
    features: Features

    def __str__(self) -> str:
        found = structs.asdict(self.features).items()
        shown = ", ".join(f"{name} {value:.2f}" for name, value in found if value >= 0.005)
        return f"complexity {self.score:.2f} ({shown or 'nothing found'})"


def classify(config: ClassifierConfig, body: Mapping[str, Any]) -> Complexity:
    """The complexity of a decoded request body, of any shape."""
    features = read_features(body)
    total = sum(weight * getattr(features, name) for name, weight in structs.asdict(config).items())
    return Complexity(score=min(1.0, max(0.0, total)), features=features)


def read_features(body: Mapping[str, Any]) -> Features:
    """What the classifier sees."""
    question, num_chars = _question(body)
    length = len(question) / _CHARS_PER_TOKEN
    text = (
        question if len(question) <= 2 * _WINDOW else f"{question[:_WINDOW]}\n{question[-_WINDOW:]}"
    )
    lowered = text.lower()
    found = {word.strip(_AROUND_WORDS) for word in lowered.split()}
    asked = len(found & words.REASONING) + sum(term in lowered for term in words.REASONING_TERMS)
    counted = len(found & words.MATHEMATICS) + sum(t in lowered for t in words.MATHEMATICS_TERMS)
    formulas = len(_RELATION.findall(text)) + sum(map(text.count, _SYMBOLS))
    code_lines = len(_CODE_LINE.findall(text))
    is_fenced = "```" in text
    demands = len(_ITEM.findall(text)) + text.count("?") + text.count("？")
    demands += 2 * len(found & words.STEPS) + 2 * sum(term in lowered for term in words.STEP_TERMS)
    greets = bool(found & words.SIMPLE) or any(term in lowered for term in words.SIMPLE_TERMS)
    return Features(
        length=_between(length, 50, 2_000),
        context=_between(num_chars / _CHARS_PER_TOKEN, 1_000, 32_000),
        code=min(1.0, 0.5 * is_fenced + 0.2 * code_lines + 0.25 * len(found & words.CODE)),
        mathematics=min(1.0, 0.25 * formulas + 0.4 * counted),
        reasoning=min(1.0, 0.4 * asked),
        steps=min(1.0, max(0, demands - 1) / 6),
        structure=float(_is_structured(body)),
        simple=float(greets and length < 40 and not (asked or counted or code_lines)),
    )


def _between(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _question(body: Mapping[str, Any]) -> tuple[str, int]:
    """The last user message, or the prompt; and the characters of everything."""
    turns = body.get("messages", body.get("input", body.get("prompt")))
    if isinstance(turns, str):
        return turns, len(turns)
    if not isinstance(turns, list):
        return "", 0
    question, num_chars = "", 0
    for turn in turns:
        text = _text(turn.get("content")) if isinstance(turn, dict) else _text(turn)
        num_chars += len(text)
        role = turn.get("role", "user") if isinstance(turn, dict) else "user"
        if role == "user" and text:
            question = text
    return question, num_chars


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "\n".join(part for part in parts if isinstance(part, str))


def _is_structured(body: Mapping[str, Any]) -> bool:
    form = body.get("response_format")
    wants_schema = isinstance(form, dict) and form.get("type") not in (None, "text")
    return bool(wants_schema or body.get("tools") or body.get("functions"))
