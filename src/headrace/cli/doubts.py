"""What a file's check doubts, on stderr."""

import sys
from collections.abc import Iterable


def tell_doubts(doubts: Iterable[str]) -> None:
    """One line each."""
    for doubt in doubts:
        print(f"headrace: warning: {doubt}", file=sys.stderr)
