"""Steps that fail because of who is in them."""

from collections.abc import Callable

from headrace.core.step import SequenceStart, StepPlan


class Poison:
    """A `step_error` for the fake executor: raises for every plan with a row of a poisoned sequence."""

    def __init__(
        self,
        executor: object,
        is_bad: Callable[[SequenceStart], bool],
        error: type[Exception] = RuntimeError,
    ) -> None:
        self.num_failed = 0
        self._is_bad = is_bad
        self._error = error
        self._starts: dict[int, SequenceStart] = {}
        executor.step_error = self

    def __call__(self, plan: StepPlan) -> Exception | None:
        # Also of plans that fail: what they bring is brought again, or another takes the slot.
        self._starts |= {start.slot: start for start in plan.starts}
        if any(self._is_bad(self._starts[row.slot]) for row in plan.rows):
            self.num_failed += 1
            return self._error("poisoned")
        return None
