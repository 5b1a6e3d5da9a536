"""Who runs at the moment, as llama.cpp's `/slots` shows it: counts, and nothing of what was asked."""


class Sitting:
    """One sequence that runs or waits."""

    __slots__ = ("max_tokens", "num_made", "seat", "task")

    def __init__(self, seat: int, task: int, max_tokens: int) -> None:
        self.seat = seat
        self.task = task
        self.max_tokens = max_tokens
        self.num_made = 0


class Seats:
    """A number for every sequence, from its submission to its end. Bounded by admission."""

    def __init__(self) -> None:
        self._sitting: dict[int, Sitting] = {}
        self._num_tasks = 0

    def take(self, max_tokens: int) -> Sitting:
        """On the lowest number that is free."""
        seat = next(n for n in range(len(self._sitting) + 1) if n not in self._sitting)
        sitting = self._sitting[seat] = Sitting(seat, self._num_tasks, max_tokens)
        self._num_tasks += 1
        return sitting

    def leave(self, sitting: Sitting) -> None:
        """It has ended."""
        del self._sitting[sitting.seat]

    def at(self, seat: int) -> Sitting | None:
        """Who has this number."""
        return self._sitting.get(seat)
