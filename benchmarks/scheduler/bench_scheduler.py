"""Python's share of a step: `schedule()` and `commit()` for rows in steady decode, and an admission.

    python benchmarks/scheduler/bench_scheduler.py

Targets: one row under 40 us, 32 rows under 500 us. The executor is not run: results are made up.
"""

import time
from collections.abc import Callable

from headrace.config.engine import SchedulerConfig
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.core.step import OutputKind, RowResult, StepPlan, StepResult
from headrace.engine.memory.hashing import RootKey
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.scheduler import Scheduler

KEY = RootKey(weights_digest=b"w" * 32, model_digest=b"m" * 32, kv_format="f16")


def make_scheduler(windows: tuple[int, ...], *, num_plans: int = 1) -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=8192, max_uncommitted_plans=num_plans)
    ledger = KVLedger(
        tuple(16_384 for _ in windows), 16, windows, key=KEY, max_uncommitted_tokens=8192
    )
    return Scheduler(config, ledger, max_context=65_536)


def result_of(plan: StepPlan) -> StepResult:
    rows = tuple(
        RowResult(row.slot, (7,) if row.output is OutputKind.SAMPLE else ()) for row in plan.rows
    )
    return StepResult(step_id=plan.step_id, rows=rows)


def seconds_per_step(
    scheduler: Scheduler, num_steps: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Mean seconds in schedule() and in commit()."""
    planning = committing = 0.0
    for _ in range(num_steps):
        began = clock()
        plan, _ = scheduler.schedule(began)
        planned = clock()
        assert plan is not None
        result = result_of(plan)
        ran = clock()
        scheduler.commit(result, ran)
        committing += clock() - ran
        planning += planned - began
    return planning / num_steps, committing / num_steps


def decode(num_rows: int, windows: tuple[int, ...] = (0,)) -> None:
    scheduler = make_scheduler(windows)
    for index in range(num_rows):
        scheduler.add(
            Request(
                request_id=f"r{index}",
                prompt=(TokenSegment(list(range(index, index + 100))),),
                params=SamplingParams(max_tokens=5000),
                eos_token_ids=(2,),
            ),
            0.0,
        )
    seconds_per_step(scheduler, 5, time.perf_counter)
    planning, committing = seconds_per_step(scheduler, 1000, time.perf_counter)
    print(
        f"decode {num_rows:3d} rows, windows {windows}: schedule {planning * 1e6:6.1f} us, "
        f"commit {committing * 1e6:6.1f} us, together {(planning + committing) * 1e6:6.1f} us"
    )


def admission(num_tokens: int) -> None:
    scheduler = make_scheduler((0,))
    request = Request(
        request_id="r",
        prompt=(TokenSegment(list(range(num_tokens))),),
        params=SamplingParams(max_tokens=1),
    )
    for what in ("cold", "cached"):
        began = time.perf_counter()
        scheduler.add(request, 0.0)
        added = time.perf_counter()
        planning = 0.0
        while scheduler.has_work():
            start = time.perf_counter()
            plan, _ = scheduler.schedule(0.0)
            planning += time.perf_counter() - start
            assert plan is not None
            scheduler.commit(result_of(plan), 0.0)
        print(
            f"admission of {num_tokens} tokens, {what}: add {(added - began) * 1e6:.0f} us, "
            f"schedule {planning * 1e6:.0f} us"
        )


if __name__ == "__main__":
    for rows in (1, 8, 32, 64):
        decode(rows)
    decode(32, (0, 512))
    for tokens in (512, 8000):
        admission(tokens)
