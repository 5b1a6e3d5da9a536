"""Random load for a scheduler: requests that come, share beginnings, and are cancelled; configurations."""

from dataclasses import dataclass

from hypothesis import strategies as st
from tests.support.engine_run import EngineRun, make_request

from headrace.config.engine import Batching, SchedulerConfig
from headrace.core.request import Request

VOCAB = 24
EOS = (0,)
SHAPES = (
    ((9,), (0,)),
    ((30,), (0,)),
    ((12, 8), (0, 7)),
    ((10, 10), (5, 0)),
    ((7,), (6,)),
)


@dataclass(frozen=True)
class Arrival:
    """A request, the step at which it comes, and perhaps one at which it is cancelled."""

    request: Request
    step: int
    cancel_after: int | None
    cancel_index: int | None


@st.composite
def arrivals(draw, max_size: int = 10) -> list[Arrival]:
    shared = draw(st.lists(st.integers(1, 3), min_size=10, max_size=24))
    found = []
    for number in range(draw(st.integers(1, max_size))):
        prompt = shared[: draw(st.integers(0, len(shared)))]
        prompt += draw(st.lists(st.integers(1, 3), min_size=0 if prompt else 1, max_size=6))
        n = draw(st.sampled_from([1, 1, 1, 2, 4]))
        request = make_request(
            f"r{number}",
            prompt,
            max_tokens=draw(st.integers(0, 16)),
            seed=draw(st.integers(0, 3)),
            eos=EOS,
            n=n,
            priority=draw(st.sampled_from([0, 0, -2, 3])),
            prior=draw(st.sampled_from([[], [], [5, 6, 7]])),
            min_tokens=draw(st.sampled_from([0, 0, 4])),
            ignore_eos=draw(st.booleans()),
            cache_salt=draw(st.sampled_from([b"", b"", b"tenant"])),
            prompt_logprobs=draw(st.sampled_from([None, None, 0, 2])),
        )
        cancel = draw(st.none() | st.none() | st.integers(0, 8))
        found.append(
            Arrival(
                request,
                draw(st.integers(0, 12)),
                cancel,
                draw(st.none() | st.integers(0, n - 1)) if cancel is not None else None,
            )
        )
    return found


@st.composite
def configs(draw) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 8, 32])),
        max_num_seqs=draw(st.sampled_from([1, 2, 5])),
        chunked_prefill=draw(st.sampled_from([True, True, False])),
        itl_target=draw(st.sampled_from([0.0, 0.005])),
        batching=draw(
            st.sampled_from([Batching.CONTINUOUS] * 3 + [Batching.STATIC, Batching.DYNAMIC])
        ),
        batch_size=3,
        priority_aging=draw(st.sampled_from([0.0, 0.05])),
        max_uncommitted_plans=draw(st.sampled_from([1, 2, 3])),
    )


def play(run: EngineRun, load: list[Arrival]) -> EngineRun:
    """Let everything arrive and be cancelled at its step, then run to the end."""
    for step in range(24):
        for arrival in load:
            if arrival.step == step:
                run.add(arrival.request)
            if arrival.cancel_after is not None and arrival.step + arrival.cancel_after == step:
                run.cancel(arrival.request.request_id, arrival.cancel_index)
        if run.engine.has_work():
            run.step()
    return run.run()


def is_too_long(request: Request, run: EngineRun) -> bool:
    """Whether memory or context leave no room for one token after the prompt."""
    return request.num_prompt_tokens >= run.scheduler.max_tokens


class Echo:
    """A draft source that guesses from the sequence's own past, right often enough to matter."""

    def __init__(self) -> None:
        self.num_open = 0

    def propose(self, request_id, index, token_ids, max_tokens):
        return list(token_ids[-3:])[:max_tokens] + [1] * max(0, min(2, max_tokens - 3))

    def ended(self, request_id, index):
        self.num_open -= 1
