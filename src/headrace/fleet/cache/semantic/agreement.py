"""Would the cached answer have been right? The rule by which shadow mode judges, without a model.

Right: the same calls with the same arguments, the same numbers as often, and at least a share of the words in common
(F1 over words, as SQuAD counts it: Rajpurkar et al., 2016, section 6.1). Wrong: anything else. It is stricter than a
reader, so the share of wrong ones that it reports is rather too high.
"""

import re
from collections import Counter
from typing import Any

import msgspec

from headrace.fleet.cache.answers import Answer
from headrace.fleet.cache.telling import told_whole

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def agree(cached: Answer, real: Answer, least: float) -> bool:
    """Both answer the same choices rightly enough. Answers that cannot be told whole do not agree."""
    one, other = _choices(cached), _choices(real)
    return len(one) == len(other) and all(
        _said_alike(a, b, least) for a, b in zip(one, other, strict=True)
    )


def overlap(one: str, other: str) -> float:
    """Share of words in common, 0..1: F1 over their counts, case aside. Two empty texts: 1."""
    mine, theirs = (Counter(_WORD.findall(text.casefold())) for text in (one, other))
    total = mine.total() + theirs.total()
    return 2 * (mine & theirs).total() / total if total else 1.0


def _choices(answer: Answer) -> list[dict[str, Any]]:
    found = msgspec.json.decode(told_whole(answer, "")).get("choices")
    return [choice.get("message") or {} for choice in found] if isinstance(found, list) else []


def _said_alike(one: dict[str, Any], other: dict[str, Any], least: float) -> bool:
    a, b = str(one.get("content") or ""), str(other.get("content") or "")
    if _calls(one) != _calls(other):
        return False
    return Counter(_NUMBER.findall(a)) == Counter(_NUMBER.findall(b)) and overlap(a, b) >= least


def _calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = message.get("tool_calls") or ()
    return [
        (call["function"].get("name"), _value(call["function"].get("arguments") or ""))
        for call in calls
        if isinstance(call.get("function"), dict)
    ]


def _value(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
