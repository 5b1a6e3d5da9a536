"""What a machine does at most is what its best moment shows."""

import pytest
from tests.support.fake_clock import FakeClock

from headrace.bench.plan import this_machine


@pytest.mark.parametrize("taken", [[0.2, 0.05, 0.1, 0.2], [0.7], [0.01] * 49 + [0.02]])
def test_the_fastest_try_counts_and_one_is_always_made(taken: list[float]) -> None:
    clock = FakeClock()
    left = iter(taken)
    assert this_machine._best(lambda: clock.advance(next(left)), clock) == pytest.approx(min(taken))
    assert next(left, None) is None
