import pytest

from headrace.completion.stop import Passed, StopMatcher, Stops


def run(stops, pieces, **options):
    matcher = StopMatcher(Stops(stops), **options)
    shown = []
    for piece in pieces:
        passed = matcher.feed(piece)
        shown.append(passed.text)
        if passed.stop is not None:
            return shown, passed.stop
    return shown, matcher.flush()


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "end"),
    [
        (["END"], ["a", "END", "b"], ["a", ""], "END"),
        (["END"], ["aE", "N", "Db"], ["a", "", ""], "END"),
        (["END"], ["aE", "N", "x"], ["a", "", "ENx"], ""),
        (["END"], ["ENEND"], ["EN"], "END"),
        (["END"], ["aEN"], ["a"], "EN"),
        (["aab"], ["aa", "a", "b"], ["", "a", ""], "aab"),
        (["\n\n"], ["x\n", "y\n", "\n"], ["x", "\ny", ""], "\n\n"),
        (["abcd", "bc"], ["abcd"], ["a"], "bc"),
        (["bc", "abc"], ["xabc"], ["x"], "abc"),
        (["b", "ab"], ["a", "b"], ["", ""], "ab"),
        (["he", "she", "hers"], ["us", "h", "e"], ["u", "", ""], "she"),
        (["😀"], ["a😀"], ["a"], "😀"),
        ([], ["anything"], ["anything"], ""),
        (["."], ["a.b"], ["a"], "."),
        (["^"], ["a^"], ["a"], "^"),
        (["]x"], ["]", "]x"], ["", "]"], "]x"),
        (["a" * 50], ["a" * 49, "b"], ["", "a" * 49 + "b"], ""),
    ],
)
def test_what_is_shown_and_how_it_ends(stops, pieces, shown, end):
    assert run(stops, pieces) == (shown, end)


def test_the_stop_string_can_be_kept():
    assert run(["END"], ["aE", "NDb"], include_stop=True) == (["a", "END"], "END")


def test_the_hold_back_is_the_shortest_possible():
    matcher = StopMatcher(Stops(["hello", "lo!"]))
    # "hel" may become "hello"; of "hell", all; of "helx", nothing.
    assert [matcher.feed(piece).text for piece in ("x", "hel", "l", "x", "l", "o", "?")] == [
        "x", "", "", "hellx", "", "", "lo?",
    ]  # fmt: skip


def test_empty_strings_stop_nothing():
    assert run(["", "b"], ["ab"]) == (
        [
            "a",
        ],
        "b",
    )


def test_one_automaton_serves_many_streams():
    stops = Stops(["ab"])
    first, second = StopMatcher(stops), StopMatcher(stops)
    assert first.feed("a") == Passed("")
    assert second.feed("b") == Passed("b")
    assert first.feed("b") == Passed("", "ab")
