"""May two questions with like vectors count as one? Each guard knows one way in which they may not.

Embeddings put "from Oslo to Rome" beside "from Rome to Oslo", and "is it safe" beside "is it not safe": at 0.9 and more.
So a match must also pass here, and by default may differ in nothing but courtesy, fillers, contractions, plurals and case.
Guards err towards a miss.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Final

from headrace.fleet.cache.semantic import words as lexicon

Words = list[str]
_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\s\w]", re.UNICODE)
_NUMBER: Final = re.compile(r"[-+−]?\d+(?:[.,:/]\d+)*\s*[%‰°€$£¥]?|[€$£¥]\s*\d+(?:[.,]\d+)*")
_QUOTED: Final = re.compile(
    r"\"[^\"]*\"|“[^“”]*”|«[^«»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)|'''.*?'''", re.DOTALL
)
#: Addresses, paths, identifiers, codes: anything with signs or capitals inside a word. All of these take time in proportion
#: to the text: whoever asks chooses it.
_TOKEN: Final = re.compile(r"\S+")
_JOINED: Final = re.compile(r"\w[@_\\/#.:+-]\w")
_PLAIN: Final = re.compile(r"\w+")
_CODE: Final = re.compile(r"[A-Z]{2}|[^\W\d]+\d|\d+[^\W\d]")
_SMALL: Final = re.compile(r"[a-z]")
_LARGE: Final = re.compile(r"[A-Z]")
#: What makes a text code or a formula: brackets, a factorial, a negation, a line that is set in.
_FORMAL: Final = re.compile(r"[()\[\]{}]|\d!|!(?=[\w=])|(?m:^[ \t]+\S)")
_SIGN_OR_WORD: Final = re.compile(r"\w+|[^\w\s]")
_SIGNS: Final = frozenset("?.,!;:'\"`()[]{}…–—’“”«»")
_OPPOSITES: Final = [tuple(pair.split()) for pair in lexicon.OPPOSITES]


def differs(one: str, other: str, *, max_new_words: int = 0) -> str | None:
    """The name of the guard that keeps them apart; None if they may count as one. Symmetric."""
    a, b = (unicodedata.normalize("NFKC", text).strip() for text in (one, other))
    for name, marks in _MARKS:
        if marks(a) != marks(b):
            return name
    if (_FORMAL.search(a) or _FORMAL.search(b)) and _formal(a) != _formal(b):
        return "code"
    first, second = _words(a), _words(b)
    if not (first and second) and a.casefold() != b.casefold():
        return "words"  # nothing but fillers: what they say is all that there is
    for name, kept in _KEPT:
        if kept(first) != kept(second):
            return name
    if _are_opposite(set(first), set(second)):
        return "opposites"
    if _turned(first, second):
        return "order"
    mine, theirs = Counter(first), Counter(second)
    if max((mine - theirs).total(), (theirs - mine).total()) > max_new_words:
        return "words"
    return None


def _formal(text: str) -> list[tuple[str, list[str]]]:
    """Each line's indentation, words and signs: in code and formulas none of them is mere wording."""
    lines = (line for line in text.rstrip("?. \n").split("\n") if line.strip())
    return [(line[: len(line) - len(line.lstrip())], _SIGN_OR_WORD.findall(line)) for line in lines]


def _numbers(text: str) -> list[str]:
    """In their order, with the signs at them; words for numbers too."""
    found = [(m.start(), re.sub(r"\s", "", m[0])) for m in _NUMBER.finditer(text)]
    for match in _WORD.finditer(text.casefold()):
        if match[0] in lexicon.NUMBERS:
            found.append((match.start(), lexicon.NUMBERS[match[0]]))
    return [value for _, value in sorted(found)]


def _units(text: str) -> list[str]:
    return sorted(word for word in _WORD.findall(text.casefold()) if word in lexicon.UNITS)


def _quotes(text: str) -> list[str]:
    return _QUOTED.findall(text)


def _names(text: str) -> list[str]:
    """Identifiers and codes as they are."""
    found: list[str] = []
    for token in _TOKEN.findall(text):
        words = [token] if _JOINED.search(token) else filter(_is_code, _PLAIN.findall(token))
        found += (word.rstrip("?.,!;:") for word in words if "'" not in word)
    return found


def _is_code(word: str) -> bool:
    """It begins with capitals, or changes to capitals or between letters and digits."""
    small = _SMALL.search(word)
    return bool(_CODE.match(word)) or (
        small is not None and _LARGE.search(word, small.end()) is not None
    )


def _symbols(text: str) -> list[str]:
    """Signs that are no punctuation: operators, emoji, currency."""
    return [word for word in _WORD.findall(text) if not word[0].isalnum() and word not in _SIGNS]


def _negations(found: Words) -> list[str]:
    return sorted(word for word in found if word in lexicon.NEGATIONS)


def _relations(found: Words) -> list[str]:
    return [word for word in found if word in lexicon.RELATIONS]


def _scopes(found: Words) -> list[str]:
    return sorted(word for word in found if word in lexicon.SCOPES)


_MARKS: Final[tuple[tuple[str, Callable[[str], list[str]]], ...]] = (
    ("numbers", _numbers), ("units", _units), ("quotes", _quotes), ("names", _names), ("symbols", _symbols),
)  # fmt: skip
_KEPT: Final[tuple[tuple[str, Callable[[Words], list[str]]], ...]] = (
    ("negation", _negations), ("relations", _relations), ("scope", _scopes),
)  # fmt: skip


def _words(text: str) -> Words:
    """In order, folded: case, contractions, courtesies, fillers, plurals."""
    folded = text.casefold().replace("’", "'")
    found: Words = []
    for word in _WORD.findall(folded):
        if word[0].isalnum():
            found += _expanded(word).split()
    plain = _without_courtesy(found)
    return [_folded(word) for word in plain if word not in lexicon.FILLERS]


def _without_courtesy(found: Words) -> Words:
    """Without greetings and courtesies at its beginning."""
    start = 0
    while (end := _past_courtesy(found, start)) > start:
        start = end
    return found[start:]


def _past_courtesy(found: Words, start: int) -> int:
    if start < len(found) and found[start] in lexicon.FILLERS:
        return start + 1
    for courtesy in lexicon.COURTESIES:
        end = start + len(courtesy)
        if found[start:end] == list(courtesy):
            return end
    return start


def _folded(word: str) -> str:
    return lexicon.NUMBERS.get(word) or _singular(word)


def _expanded(word: str) -> str:
    if word in lexicon.CONTRACTIONS:
        return lexicon.CONTRACTIONS[word]
    for ending, full in lexicon.ENDINGS:
        if word.endswith(ending):
            return word.removesuffix(ending) + full
    return word.removesuffix("'s").removesuffix("'")


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-3] + "y" if word.endswith("ies") and len(word) > 4 else word[:-1]
    return word


def _are_opposite(first: set[str], second: set[str]) -> bool:
    """One says a word whose opposite only the other says."""
    mine, theirs = first - second, second - first
    return any(
        (_singular(a) in mine and _singular(b) in theirs)
        or (_singular(b) in mine and _singular(a) in theirs)
        for a, b in _OPPOSITES
    )


def _turned(first: Words, second: Words) -> bool:
    """Words that both have stand in another order: who does what to whom may have changed."""
    shared = Counter(first) & Counter(second)
    return _in_order(first, shared) != _in_order(second, shared)


def _in_order(found: Words, shared: Counter[str]) -> Words:
    left = shared.copy()
    kept = []
    for word in found:
        if left[word] > 0:
            left[word] -= 1
            kept.append(word)
    return kept
