"""The gap that few of a stream's gaps exceed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.gateway.pace import Pace

BOUNDS = tuple(n / 100 for n in range(1, 101))


def pace_of(gaps: list[float]) -> Pace:
    pace, now = Pace(BOUNDS), 10.0
    pace.note(now, 1)
    for gap in gaps:
        now += gap
        pace.note(now, 1)
    return pace


@given(st.lists(st.floats(0.0, 0.99), min_size=1, max_size=200))
def test_it_is_the_percentile_as_far_as_bounds_tell(gaps: list[float]) -> None:
    found = pace_of(gaps).slow_gap
    assert found is not None
    assert sum(gap <= found + 0.0101 for gap in gaps) >= 0.95 * len(gaps)
    assert sum(gap < found - 0.0101 for gap in gaps) <= 0.95 * len(gaps)


def test_stalls_are_seen_that_a_mean_hides() -> None:
    pace = pace_of([0.01] * 90 + [0.8] * 10)
    assert pace.tpot == pytest.approx(0.089)
    assert pace.slow_gap == pytest.approx(0.8, abs=0.011)


def test_one_token_has_no_gap_and_a_gap_above_all_bounds_is_the_last_bound() -> None:
    assert pace_of([]).slow_gap is None
    assert pace_of([5.0]).slow_gap == 1.0
