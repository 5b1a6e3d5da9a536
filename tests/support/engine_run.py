"""An engine over a `FakeExecutor`, driven step by step, with its books checked after every one."""

from dataclasses import dataclass, field

from tests.support.fake_clock import FakeClock
from tests.support.fake_executor import FakeExecutor
from tests.support.fake_tier import FakeTier
from tests.support.reference_tokens import reference_tokens

from headrace.config.engine import SchedulerConfig
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import KVPolicy, Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.memory.hashing import RootKey
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.drafts import DraftSource
from headrace.engine.scheduler.scheduler import Scheduler

DEFAULT = SchedulerConfig(max_step_time=0.0)
KEY = RootKey(weights_digest=b"w" * 32, model_digest=b"m" * 32, kv_format="f16")


FULL = KVPolicy()


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    seed: int = 1,
    eos: tuple[int, ...] = (),
    n: int = 1,
    priority: int = 0,
    prior: list[int] | None = None,
    deadline: float | None = None,
    max_queue_time: float | None = None,
    cache_salt: bytes = b"",
    kv_policy: KVPolicy = FULL,
    **params: object,
) -> Request:
    """A request with token ids as its prompt."""
    return Request(
        request_id=request_id,
        prompt=(TokenSegment(prompt),),
        params=SamplingParams(max_tokens=max_tokens, seed=seed, **params),
        eos_token_ids=eos,
        n=n,
        priority=priority,
        prior_output_ids=prior or [],
        kv_policy=kv_policy,
        deadline=deadline,
        max_queue_time=max_queue_time,
        cache_salt=cache_salt,
    )


@dataclass
class Output:
    """What one sequence gave."""

    token_ids: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    events: list[TokenEvent] = field(default_factory=list)


class EngineRun:
    """Engine, scheduler, ledger, fake executor and clock, with everything that came out."""

    def __init__(
        self,
        config: SchedulerConfig = DEFAULT,
        *,
        num_blocks: tuple[int, ...] = (64,),
        block_size: int = 4,
        windows: tuple[int, ...] = (0,),
        prefix_cache: bool = True,
        max_context: int = 10_000,
        vocab_size: int = 64,
        draft_source: DraftSource | None = None,
        seconds_per_step: float = 0.01,
        tier: FakeTier | None = None,
    ) -> None:
        in_flight = config.max_num_batched_tokens * config.max_uncommitted_plans
        self.config = config
        self.clock = FakeClock()
        self.ledger = KVLedger(
            num_blocks,
            block_size,
            windows,
            key=KEY,
            prefix_cache=prefix_cache,
            max_uncommitted_tokens=in_flight if config.chunked_prefill else 0,
            record_events=True,
            has_tier=tier is not None,
        )
        self.scheduler = Scheduler(
            config,
            self.ledger,
            max_context=max_context,
            draft_source=draft_source,
            tier=tier,
            embedding_size=1,
        )
        self.executor = FakeExecutor(
            block_size,
            windows,
            vocab_size,
            max_slots=config.max_num_seqs,
            max_tokens=config.max_num_batched_tokens if config.chunked_prefill else 1 << 30,
            clock=self.clock,
            seconds_of=lambda plan: seconds_per_step,
            keep_plans=True,
            tier=tier,
        )
        self.engine = Engine(
            self.scheduler,
            self.executor,
            self.clock,
        )
        self.outputs: dict[tuple[str, int], Output] = {}
        self.scores: dict[str, list[int]] = {}
        """Prompt tokens that were reported on, by request."""
        self.requests: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """Hand a request to the engine."""
        self.requests[request.request_id] = request
        for index in range(request.n):
            self.outputs[request.request_id, index] = Output()
        self._take(self.engine.add(request))

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """Cancel a request or one of its sequences."""
        self._take(self.engine.cancel(request_id, index))
        self.check()

    def step(self) -> None:
        """One turn of the loop, then all invariants."""
        events = self.engine.step()
        if not events and not self.executor.refused and not self.engine.has_work():
            return
        self._take(events)
        self.check()

    def run(self, max_steps: int = 20_000) -> "EngineRun":
        """Until nothing is left to do. Fails when that takes too long."""
        for _ in range(max_steps):
            if not self.engine.has_work():
                return self
            before = self.executor.num_steps
            self.step()
            if self.executor.num_steps == before:
                self.clock.advance(0.005)  # a batch that waits for its window
        raise AssertionError("The engine does not come to an end.")

    def run_all(self, requests: list[Request]) -> None:
        """All of them at once, to the end, which must be a good one."""
        for request in requests:
            self.add(request)
        self.run()
        self.check_empty()
        self.check_tokens()

    def check(self) -> None:
        """The ledger adds up, and started = finished + running + waiting."""
        if self.executor.refused:
            raise self.executor.refused[0]
        self.ledger.check_integrity()
        stats = self.engine.stats()
        assert stats.started == sum(stats.finished.values()) + stats.num_running + stats.num_waiting
        usage = self.ledger.usage()
        assert usage.free + usage.held + usage.cached + usage.pending == usage.total

    def check_empty(self) -> None:
        """Nothing runs, waits or holds a block, and every sequence ended exactly once."""
        self.check()
        assert self.ledger.usage().held == 0
        assert self.engine.stats().num_running == self.engine.stats().num_waiting == 0
        for output in self.outputs.values():
            assert [e.finish is not None for e in output.events].count(True) == 1
            assert output.events[-1].finish is not None

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        """What a sequence gave."""
        return self.outputs[request_id, index].token_ids

    def reference(self, request_id: str, index: int = 0) -> list[int]:
        """What it must give when nothing cuts it short."""
        return reference_tokens(
            self.requests[request_id],
            index,
            vocab_size=self.executor.vocab_size,
            windows=self.executor.windows,
            room=self.scheduler.max_tokens,
            block_size=self.ledger.block_size,
        )

    def check_tokens(self) -> None:
        """Every sequence gave its reference tokens: all of them, or a beginning if it was cut short."""
        for (request_id, index), output in self.outputs.items():
            request = self.requests[request_id]
            if request.params.prompt_logprobs is not None and output.token_ids:
                prompt = [i for s in request.prompt for i in s.token_ids]
                assert self.scores.get(request_id, []) == prompt[1:]
            expected = self.reference(request_id, index)
            if output.finish in (FinishReason.STOP, FinishReason.LENGTH):
                assert output.token_ids == expected
            else:
                assert output.token_ids == expected[: len(output.token_ids)]

    def _take(self, events: list[TokenEvent]) -> None:
        for event in events:
            output = self.outputs[event.request_id, event.index]
            assert output.finish is None, "an event after the end"
            if event.prompt_logprobs:
                told = self.scores.setdefault(event.request_id, [])
                for entry in event.prompt_logprobs:
                    assert entry.logprob == -(len(told) + 1) / 64, "out of order"
                    told.append(entry.token_id)
            output.token_ids += event.token_ids
            output.finish = event.finish
            output.events.append(event)
