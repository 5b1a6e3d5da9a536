"""In place of an executor: every plan takes the time that the profile says, and gives tokens without meaning."""

from collections import deque
from collections.abc import Callable

from headrace.bench.simulate.profile import StepTime
from headrace.core.step import BlockLanding, OutputKind, RowResult, StepPlan, StepResult

#: The token that is always sampled; no request of the simulation stops at it.
TOKEN = 1


class OwnClock:
    """A replica's time: the simulation's, and ahead of it within a step. Implements `core.clock.Clock`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Simulated seconds."""
        return self.now

    def wall(self) -> float:
        """Not a date: nobody asks."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes for this replica."""
        self.now += seconds


class TimedExecutor:
    """Implements `engine.engine.Executor`; `collect` moves the clock to the end of the step."""

    def __init__(self, step: StepTime, clock: OwnClock) -> None:
        self._step = step
        self._clock = clock
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Runs behind the plans before it."""
        self._plans.append(plan)

    def collect(self) -> StepResult:
        """The oldest plan is done now."""
        plan = self._plans.popleft()
        if plan.rows:
            self._clock.now += plan_seconds(self._step, plan)
        rows = tuple(
            RowResult(row.slot, (TOKEN,) if row.output is OutputKind.SAMPLE else ())
            for row in plan.rows
        )
        return StepResult(step_id=plan.step_id, rows=rows)

    def call(self, action: Callable[[], None]) -> None:
        """Between plans is now."""
        action()

    def take_landed(self) -> list[BlockLanding]:
        """There is no tier to load blocks from."""
        return []

    def park(self) -> None:
        """There is no memory to give back."""

    def close(self) -> None:
        """Nothing is held."""


def plan_seconds(step: StepTime, plan: StepPlan) -> float:
    """What a plan costs."""
    prefill = decode = attended = 0
    for row in plan.rows:
        count = row.num_tokens
        attended += count * row.start + count * (count + 1) // 2
        if count == 1 and row.output is OutputKind.SAMPLE:
            decode += 1
        else:
            prefill += count
    return step.seconds(prefill, decode, attended)
