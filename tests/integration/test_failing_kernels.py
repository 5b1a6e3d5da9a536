"""A step that raises in the real executor, before or after its kernels ran, costs the others no bit."""

import msgspec
import pytest
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import make_tiny_llama

from headrace.core.events import FinishReason
from headrace.engine.executor.executor import OverlappedExecutor

PROMPTS = [[3 + (7 * i + 5 * n) % 300 for i in range(20 + 9 * n)] for n in range(7)]
BAD = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


class Tolerant(RealEngine):
    """Takes errors as ends."""

    def _take(self, events):
        super()._take(msgspec.structs.replace(event, error=None) for event in events)


def run(model, num_plans, *, fault=None):
    scheduler = {"max_num_batched_tokens": 48, "max_num_seqs": 6}
    with Tolerant(model, max_uncommitted_plans=num_plans, **scheduler) as engine:
        if fault is not None:
            inject(engine.engine._executor, fault)
        return engine.run(
            make_request(f"r{number}", prompt, seed=number, max_tokens=12, logprobs=1)
            for number, prompt in enumerate(PROMPTS)
        )


def inject(executor, fault):
    """Raise for every plan with a row of the bad sequence."""
    inner = executor._inner if isinstance(executor, OverlappedExecutor) else executor
    seeds, execute = {}, inner.execute

    def failing(plan):
        seeds.update((start.slot, start.seed) for start in plan.starts)
        is_bad = any(seeds[row.slot] == BAD for row in plan.rows)
        if is_bad and fault == "before":
            raise MemoryError
        result = execute(plan)
        if is_bad:
            raise RuntimeError("after its kernels ran")
        return result

    inner.execute = failing


@pytest.mark.parametrize("num_plans", [1, 2])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_step_that_raises_ends_its_culprit_and_changes_no_other_bit(model, num_plans, fault):
    good, bad = run(model, 1), run(model, num_plans, fault=fault)
    assert bad[f"r{BAD}", 0].finish is FinishReason.ERROR
    others = [key for key in good if key != (f"r{BAD}", 0)]
    assert [bad[key] for key in others] == [good[key] for key in others]
