"""How many prompt tokens a step may take: a pure function of what steps cost.

A step with p prefill tokens and d decode rows is taken to last `p * a + d * b` seconds. Both rates are
measured from finished steps and smoothed, so they follow the machine, the model and the context length.
"""

from typing import NamedTuple

#: Weight of the newest step: an estimate follows a change within about ten steps.
_SMOOTHING = 0.2

#: Prefill tokens that a step may always take: a prompt that crawls still arrives.
MIN_PREFILL_TOKENS = 16

#: Share of a mixed step that is put down to its prefill even when decode is thought to explain it all.
_MIN_PREFILL_SHARE = 0.1


class StepCost(NamedTuple):
    """Smoothed seconds; 0.0 is not measured yet."""

    per_prefill_token: float = 0.0
    per_decode_row: float = 0.0


def observe(cost: StepCost, num_prefill: int, num_decode: int, seconds: float) -> StepCost:
    """The estimate after a step with this many prefill tokens and decode rows."""
    if seconds <= 0.0:
        return cost
    if num_prefill == 0:
        if num_decode == 0:
            return cost
        return StepCost(cost.per_prefill_token, _blend(cost.per_decode_row, seconds / num_decode))
    per_row = cost.per_decode_row
    if num_decode and per_row * num_decode > seconds:
        # Rows are cheaper together than alone: the rate from a smaller batch is too high.
        per_row = _blend(per_row, seconds / num_decode)
    rest = max(seconds - per_row * num_decode, _MIN_PREFILL_SHARE * seconds)
    return StepCost(_blend(cost.per_prefill_token, rest / num_prefill), per_row)


def step_target(itl_target: float, max_step_time: float, num_decode: int) -> float:
    """Seconds that a step with `num_decode` rows should stay within: of both bounds (0: none) the
    smaller; `itl_target` is for running streams only.
    """
    bounds = (itl_target if num_decode else 0.0, max_step_time)
    return min((bound for bound in bounds if bound > 0.0), default=0.0)


def prefill_cap(cost: StepCost, target: float, num_decode: int, budget: int) -> int:
    """Prefill tokens, at most `budget`, that keep a step with `num_decode` rows within `target` seconds.

    No target: the whole budget. Before the first measurement: the minimum, as a step's time is unknown.
    """
    if target <= 0.0:
        return budget
    if cost.per_prefill_token <= 0.0:
        return min(budget, MIN_PREFILL_TOKENS)
    room = (target - cost.per_decode_row * num_decode) / cost.per_prefill_token
    return min(budget, max(MIN_PREFILL_TOKENS, int(room)))


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
