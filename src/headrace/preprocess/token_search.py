"""Which tokens hold a text: one search through all their bytes, joined."""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable

#: Texts whose tokens are remembered.
_MAX_REMEMBERED = 64


class TokenSearch:
    """Of a vocabulary: `spelt` has the bytes of ids 0, 1, …; safe to use from several threads."""

    def __init__(self, spelt: Iterable[bytes]) -> None:
        pieces = list(spelt)
        self._bytes = b"".join(pieces)
        self._ends = array("I")
        end = 0
        for piece in pieces:
            end += len(piece)
            self._ends.append(end)
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def holding(self, text: bytes) -> tuple[int, ...]:
        """Ids of the tokens whose bytes hold `text` (not empty), ascending."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = tuple(self._search(text))
            while len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _search(self, text: bytes) -> Iterable[int]:
        place = self._bytes.find(text)
        while place >= 0:
            token_id = bisect_right(self._ends, place)
            end = self._ends[token_id]
            if place + len(text) <= end:
                yield token_id
                place = self._bytes.find(text, end)
            else:  # it begins in this token and ends in another
                place = self._bytes.find(text, place + 1)
