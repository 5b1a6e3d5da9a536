"""Stop patterns against `re`, in every cut of a text."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.completion.stop import StopMatcher, Stops

CHARS = st.sampled_from(
    ["a", "b", "c", ".", r"\d", "[ab]", "[^a]", r"[\d-]", r"\.", "é", r"\n", r"\x61"]
)


def _grow(inner):
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, repeats).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


PATTERNS = st.recursive(CHARS, _grow, max_leaves=6).filter(lambda p: not re.fullmatch(p, ""))
TEXTS = st.text("abc1.-\né", max_size=10)


def _first_match(patterns, text):
    """(begin, end, pattern) of the match that ends first, the earliest begin of several."""
    for end in range(1, len(text) + 1):
        for begin in range(end):
            found = [p for p in patterns if re.fullmatch(p, text[begin:end])]
            if found:
                return begin, end, found
    return None


def _run(stops, pieces, *, include_stop):
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = ""
    for piece in pieces:
        passed = matcher.feed(piece)
        shown += passed.text
        if passed.stop is not None:
            return shown, passed.stop
    return shown + matcher.flush(), None


@given(
    st.lists(PATTERNS, min_size=1, max_size=2), TEXTS, st.sets(st.integers(0, 10)), st.booleans()
)
def test_it_ends_where_re_says_whatever_the_pieces(patterns, text, cuts, include_stop):
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    shown, stop = _run(Stops((), patterns), pieces, include_stop=include_stop)
    expected = _first_match(patterns, text)
    if expected is None:
        assert (shown, stop) == (text, None)
    else:
        begin, end, found = expected
        assert shown == text[: end if include_stop else begin]
        assert stop in found


@given(PATTERNS, TEXTS)
def test_nothing_of_a_match_leaks_and_nothing_else_is_late(pattern, text):
    matcher = StopMatcher(Stops((), [pattern]))
    expected = _first_match([pattern], text)
    shown = 0
    for character in text:
        passed = matcher.feed(character)
        shown += len(passed.text)
        assert expected is None or shown <= expected[0]
        if passed.stop is not None:
            break
