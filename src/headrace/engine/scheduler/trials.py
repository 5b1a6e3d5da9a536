"""Sequences of steps that failed, taken apart until it is known which of them fails its step.

A failed step does not say whose fault it was. Its sequences run again in two halves, each of them alone;
a half that fails is halved in turn. A sequence is cleared by a step that gives it a token. So a step with one
bad sequence among n costs about 2 log2(n) steps, and a step that was too large for memory is run in parts.
"""

from collections.abc import Sequence as ListLike

from headrace.engine.scheduler.sequence import Sequence


class Trials:
    """Groups of suspects, in the order in which they are tried."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []

    def __bool__(self) -> bool:
        """Somebody may be in doubt: most engines never need to ask who."""
        return bool(self._groups)

    def current(self) -> list[Sequence]:
        """The group whose turn it is: nothing else runs beside it. Empty when nobody is in doubt."""
        while self._groups:
            group = [s for s in self._groups[0] if s.is_suspect and s.finish is None]
            if group:
                self._groups[0] = group
                return group
            del self._groups[0]
        return []

    def halve(self, sequences: ListLike[Sequence]) -> None:
        """They were in a step that failed: try them next, the better ranks first."""
        ordered = sorted(sequences, key=lambda sequence: sequence.rank)
        for sequence in ordered:
            sequence.is_suspect = True
        middle = (len(ordered) + 1) // 2
        rest = [[s for s in group if s not in ordered] for group in self._groups]
        self._groups = [ordered[:middle], ordered[middle:], *rest]

    def clear(self) -> None:
        """Nobody is left to be tried."""
        self._groups.clear()
