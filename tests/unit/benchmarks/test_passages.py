"""The prompts of the agreement measurement are drawn by a rule."""

import pytest
from passages import COUNT, TEXT, WORDS, passages


def test_equal_distances_and_word_borders() -> None:
    text = "\n".join(f"w{number}\t" for number in range(103))
    assert passages(text, count=4, words=3) == [
        "w0 w1 w2",
        "w25 w26 w27",
        "w51 w52 w53",
        "w77 w78 w79",
    ]


def test_the_committed_text_gives_all_of_them() -> None:
    found = passages(TEXT.read_text(encoding="utf-8"))
    assert len(found) == len(set(found)) == COUNT
    assert {len(passage.split(" ")) for passage in found} == {WORDS}
    assert found[0].startswith("CHAPTER 1 No one who had ever seen Catherine Morland")


@pytest.mark.parametrize(("count", "words"), [(0, 3), (3, 0), (4, 26), (200, 1)])
def test_refuses_what_the_text_does_not_hold(count: int, words: int) -> None:
    with pytest.raises(ValueError, match="words do not hold"):
        passages(" ".join(["word"] * 103), count=count, words=words)
