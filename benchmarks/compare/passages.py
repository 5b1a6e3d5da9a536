"""Prompts that nobody chose: passages at equal distances in a text that was fixed before any result.

The text is cut into words at white space. Of W words, passage i of n is words ⌊i·W/n⌋ up to ⌊i·W/n⌋ + `words`,
joined by single spaces.

    python benchmarks/compare/passages.py          prints the passages, one a line
"""

from pathlib import Path

TEXT = Path(__file__).parent.parent / "data" / "northanger-abbey.txt"
COUNT = 32
WORDS = 48


def passages(text: str, *, count: int = COUNT, words: int = WORDS) -> list[str]:
    """`count` passages of `words` words. Raises ValueError if they would overlap or run over the end."""
    every = text.split()
    if count < 1 or words < 1 or len(every) // count < words:
        raise ValueError(f"{len(every)} words do not hold {count} passages of {words}.")
    starts = [number * len(every) // count for number in range(count)]
    return [" ".join(every[start : start + words]) for start in starts]


if __name__ == "__main__":
    print("\n".join(passages(TEXT.read_text(encoding="utf-8"))))
