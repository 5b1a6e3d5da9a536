"""Stop patterns: their bounds, and what they have to do with stop strings."""

import pytest
from tests.support.in_process import InProcess

from headrace.completion.stop import Passed, StopMatcher, Stops
from headrace.completion.stop_patterns import WINDOW
from headrace.preprocess.patterns import PatternError, StopPatterns


def test_text_before_a_match_is_shown_at_once_and_the_rest_held():
    matcher = StopMatcher(Stops((), ["ab+c"]))
    assert matcher.feed("xxa") == Passed("xx")
    assert matcher.feed("bbb") == Passed("")
    assert matcher.feed("a") == Passed("abbb")
    assert matcher.feed("bcd") == Passed("", "ab+c")


def test_what_never_ends_is_text_after_all():
    matcher = StopMatcher(Stops((), ["ab+c"]))
    assert matcher.feed("xab") == Passed("x")
    assert matcher.flush() == "ab"


def test_no_more_than_a_window_is_held():
    matcher = StopMatcher(Stops((), ["a[^z]*z"]))
    assert matcher.feed("a" + "b" * (WINDOW - 1)) == Passed("")
    assert matcher.feed("b").text == "a" + "b" * WINDOW
    assert matcher.feed("z") == Passed("z")


@pytest.mark.parametrize(
    ("strings", "pattern", "text", "shown", "stop"),
    [
        (["hello"], "he", "a hello", "a ", "he"),
        (["he"], "hello", "a hello", "a ", "he"),
        (["lo"], "h.*lo", "a hello", "a ", "h.*lo"),
        (["hello"], "l+o", "a hello", "a ", "hello"),
    ],
)
def test_the_first_of_strings_and_patterns_ends_it_and_the_longest(
    strings, pattern, text, shown, stop
):
    for pieces in ([text], list(text)):
        matcher = StopMatcher(Stops(strings, [pattern]))
        passed = [matcher.feed(piece) for piece in pieces]
        end = next(n for n, one in enumerate(passed) if one.stop)
        assert "".join(one.text for one in passed[: end + 1]) == shown
        assert passed[end].stop == stop


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a|", "()", "(", ")", "a)", "[", "[]", "[a", "a**", "a{2}{3}", "*a", "a{", "a{0}", "a{3,2}", "^a", "a$",
        r"\b", r"(a)\1", "(?=a)", "(?i)a", "(?P<n>a)", "\\", r"\xz1", "[z-a]", "[[a]]", "[a--b]", "a*", "a?|b",
        "a{257}", "(a{16}){17}", "(a?){200}", "(" * 40 + "a" + ")" * 40, "a" * 257, "(a|b){1,100}",
    ],
)  # fmt: skip
def test_what_is_refused(pattern):
    with pytest.raises(PatternError):
        StopPatterns([pattern])


async def test_over_http_a_bad_one_is_named_and_a_good_one_ends_the_answer(tmp_path):
    async with InProcess(tmp_path) as app:
        body = {"prompt": "hi", "max_tokens": 8}
        for value, param in (
            (["a", "(b"], "stop_regex[1]"),
            ("a*", "stop_regex"),
            ("", "stop_regex"),
            (["a"] * 9, "stop_regex"),
            (3, "stop_regex"),
        ):
            answer = await app.http.post("/v1/completions", json={**body, "stop_regex": value})
            assert answer.status_code == 400, value
            assert answer.json()["error"]["param"] == param
        asked = {**body, "stop_regex": ".[^\\n]{2}"}
        choice = (await app.http.post("/v1/completions", json=asked)).json()["choices"][0]
        assert choice["text"] == ""
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", asked["stop_regex"])
        kept = {**asked, "include_stop_str_in_output": True}
        choice = (await app.http.post("/v1/completions", json=kept)).json()["choices"][0]
        assert len(choice["text"]) == 3
