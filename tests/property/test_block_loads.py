"""Random load over a tier below the cache that is slow and loses things: every token is right all the same."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.engine_run import EngineRun
from tests.support.fake_tier import FakeTier
from tests.support.random_load import SHAPES, VOCAB, arrivals, configs, is_too_long, play

from headrace.core.events import FinishReason


def run_over(tier, load, config, shape, step_error=None):
    num_blocks, windows = shape
    run = EngineRun(config, num_blocks=num_blocks, windows=windows, vocab_size=VOCAB, tier=tier)
    run.executor.step_error = step_error and (lambda plan: step_error(run, plan))
    play(run, load)
    run.check_empty()
    run.check_tokens()
    assert run.ledger.usage().pending == 0
    return run


def random_tier(max_delay, num_bad):
    """Slow for some blocks, broken for others; the same for the same block."""
    return FakeTier(
        delay=lambda load: load.key[0] % (max_delay + 1),
        fails=lambda load: load.key[1] % 8 < num_bad,
    )


@given(
    load=arrivals(),
    config=configs(),
    shape=st.sampled_from(SHAPES),
    max_delay=st.sampled_from([0, 1, 6]),
    num_bad=st.sampled_from([0, 2, 8]),
)
@settings(max_examples=60)
def test_what_one_engine_stored_another_loads_or_computes(load, config, shape, max_delay, num_bad):
    tier = random_tier(max_delay, num_bad)
    first = run_over(tier, load, config, shape)
    stored = len(tier.blocks)
    assert stored or not any(pool.cache.block_of for pool in first.ledger._pools)
    second = run_over(tier, load, config, shape)
    for run in (first, second):
        for arrival in load:
            if arrival.cancel_after is None and not is_too_long(arrival.request, run):
                for index in range(arrival.request.n):
                    finish = run.outputs[arrival.request.request_id, index].finish
                    assert finish in (FinishReason.STOP, FinishReason.LENGTH)


@given(
    load=arrivals(max_size=6),
    config=configs(),
    shape=st.sampled_from(SHAPES),
    fail_at=st.integers(1, 20),
    period=st.integers(3, 9),
)
@settings(max_examples=40)
def test_steps_that_fail_lose_no_load(load, config, shape, fail_at, period):
    """Every so many steps fail, those that carry loads and stores as well."""
    tier = random_tier(3, 1)
    run_over(tier, load, config, shape)

    def fails(run, plan):
        is_due = run.executor.num_steps >= fail_at and run.executor.num_steps % period == 0
        return RuntimeError("now and then") if is_due else None

    num_blocks, windows = shape
    run = EngineRun(config, num_blocks=num_blocks, windows=windows, vocab_size=VOCAB, tier=tier)
    run.executor.step_error = lambda plan: fails(run, plan)
    play(run, load)
    run.check_empty()
    run.check_tokens()
    assert run.ledger.usage().pending == 0
