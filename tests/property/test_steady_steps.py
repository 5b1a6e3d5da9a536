"""Steps that only go on decoding are the same, plan for plan and event for event, as those planned from nothing."""

import dataclasses
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.engine_run import EngineRun, make_request
from tests.support.fake_tier import FakeTier
from tests.support.random_load import SHAPES, VOCAB, Arrival, Echo, arrivals, configs

from headrace.core.beams import BeamSearch
from headrace.core.request import KVPolicy, KVPolicyKind
from headrace.engine.scheduler import scheduler
from headrace.engine.scheduler.planner import Planner
from headrace.engine.scheduler.steady import Steady

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EVICTING = KVPolicy(KVPolicyKind.EVICT, num_sinks=4, window=8)


class History:
    """All that can be seen of a run, step by step."""

    def __init__(self, run: EngineRun, load: list[Arrival]) -> None:
        self._run = run
        self.steps = []
        for step in range(24):
            for arrival in load:
                if arrival.step == step:
                    run.add(arrival.request)
                if arrival.cancel_after is not None and arrival.step + arrival.cancel_after == step:
                    run.cancel(arrival.request.request_id, arrival.cancel_index)
            self._step()
        for _ in range(2_000):
            if not run.engine.has_work():
                break
            self._step()
        run.check_empty()
        self.plans = run.executor.plans
        self.events = {key: output.events for key, output in run.outputs.items()}

    def _step(self) -> None:
        run, before = self._run, self._run.executor.num_steps
        if run.engine.has_work():
            run.step()
        if run.executor.num_steps == before:
            run.clock.advance(0.005)
        self.steps.append((run.engine.stats(), run.engine.take_kv_events()))


def no_plan(self, step_id, now):
    return None


def no_event(planned, row, ledger):
    return None


def varied(data, arrival: Arrival) -> Arrival:
    """The same with another policy, log-probabilities or beams."""
    request, kind = arrival.request, data.draw(st.integers(0, 7))
    if kind == 0:
        request = replace(request, kv_policy=EVICTING)
    elif kind == 1:
        request = replace(request, params=replace(request.params, logprobs=2))
    elif kind == 2:
        params = replace(request.params, prompt_logprobs=None, min_tokens=0)
        request = replace(request, beams=BeamSearch(width=2), n=1, params=params)
    return dataclasses.replace(arrival, request=request)


@given(load=arrivals(max_size=6), config=configs(), shape=st.sampled_from(SHAPES), data=st.data())
@QUICK
def test_going_on_changes_nothing(load, config, shape, data):
    load = [varied(data, arrival) for arrival in load]
    fail_at, bad_row = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    has_drafts, has_tier = data.draw(st.integers(0, 4)) == 0, data.draw(st.integers(0, 4)) == 0
    max_context = data.draw(st.sampled_from([20, 10_000]))

    def play() -> History:
        run = EngineRun(
            config,
            num_blocks=shape[0],
            windows=shape[1],
            vocab_size=VOCAB,
            max_context=max_context,
            draft_source=Echo() if has_drafts else None,
            tier=FakeTier() if has_tier else None,
        )
        run.executor.step_error = lambda plan: (
            RuntimeError("once") if run.executor.num_steps == fail_at else None
        )
        run.executor.row_error = lambda plan, row: (
            "not finite" if plan.step_id == bad_row and row.slot == 0 else None
        )
        return History(run, load)

    new = play()
    with patch.object(Steady, "plan", no_plan), patch.object(scheduler, "one_more", no_event):
        old = play()
    assert new.plans == old.plans
    assert new.events == old.events
    assert new.steps == old.steps


@pytest.mark.parametrize("num_plans", [1, 2])
def test_the_planner_is_not_asked_while_the_same_sequences_decode(num_plans):
    asked = []
    fill = Planner._fill

    def spied(self, builder, now, running, waiting):
        fill(self, builder, now, running, waiting)
        asked.append(len(builder.rows))

    run = EngineRun(config=_config(num_plans), block_size=16, vocab_size=VOCAB)
    for number in range(3):
        run.add(make_request(f"r{number}", [1, 2, number], max_tokens=12))
    with patch.object(Planner, "_fill", spied):
        run.run()
    run.check_tokens()
    # The prompts, the first decode step, and what comes when all is said: 12 steps have 10 that go on.
    assert len(run.executor.plans) >= 12
    assert len(asked) <= len(run.executor.plans) - 9


def _config(num_plans):
    return scheduler.SchedulerConfig(max_num_batched_tokens=32, max_uncommitted_plans=num_plans)
