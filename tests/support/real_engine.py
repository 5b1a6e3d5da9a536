"""A built engine, real kernels and all, in this process: requests in, whole outputs out."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.fake_clock import FakeClock

from headrace.config.engine import (
    EngineConfig,
    ExecutorConfig,
    MemoryConfig,
    ModelConfig,
    SchedulerConfig,
)
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request
from headrace.core.stats import EngineStats
from headrace.engine.build import build_engine


@dataclass
class Said:
    """All that one sequence gave. Equal means bitwise equal: log-probabilities are exact floats."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    num_cached: int = field(default=0, compare=False)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def after(self, count: int) -> "Said":
        """What it gave after its first `count` tokens."""
        return Said(self.token_ids[count:], self.logprobs[count:], self.finish)


class RealEngine:
    """`model` is a path or a short name; `scheduler` holds fields of `SchedulerConfig`."""

    def __init__(
        self,
        model: Path | str,
        *,
        isa: str = "auto",
        threads: int = 1,
        quantize: str | None = None,
        kv_memory: str = "auto",
        kv_dtype: Literal["auto", "bf16", "f16", "int16", "int8", "f32"] = "auto",
        prefix_cache: bool = True,
        kv_tier_memory: str = "0",
        lora: tuple[str, ...] = (),
        lora_root: str | None = None,
        max_loras: int = 8,
        **scheduler: Any,
    ) -> None:
        config = EngineConfig(
            model=ModelConfig(
                model=str(model),
                quantize=quantize,
                cache_packed=False,
                lora=lora,
                lora_root=lora_root,
                max_loras=max_loras,
            ),
            memory=MemoryConfig(
                kv_memory=kv_memory,
                kv_dtype=kv_dtype,
                prefix_cache=prefix_cache,
                kv_tier_memory=kv_tier_memory,
            ),
            # Time stands still within a step: no bound can be kept by what steps cost.
            scheduler=SchedulerConfig(**{"max_step_time": 0.0, **scheduler}),
            executor=ExecutorConfig(backend="cpu", isa=isa, threads=threads),
        )
        self.clock = FakeClock()
        self.built = build_engine(config, self.clock, lambda phase: None)
        self.engine = self.built.engine
        self.vectors: dict[str, bytes] = {}
        """Of texts."""
        self._said: dict[tuple[str, int], Said] = {}

    @property
    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        return self.engine.stats()

    def add(self, request: Request) -> None:
        """Hand a request in."""
        for index in range(request.n):
            self._said[request.request_id, index] = Said()
        self._take(self.engine.add(request))

    def step(self) -> None:
        """One turn of the loop."""
        if self.engine.is_waiting:
            time.sleep(0.001)  # the time of the thread that compiles, or loads, is not ours
        else:
            self.clock.advance(0.001)
        self._take(self.engine.step())

    def step_keeping(self, events: list[TokenEvent]) -> None:
        """One turn; events of requests that were not added here, such as expected errors, are kept."""
        for event in self.engine.step():
            if (event.request_id, event.index) in self._said:
                self._take([event])
            else:
                events.append(event)

    def cancel(self, request_id: str) -> None:
        """As when its client leaves."""
        self._take(self.engine.cancel(request_id))

    def finish(self) -> dict[tuple[str, int], Said]:
        """Run until nothing is left; the books must add up and every block be back."""
        while self.engine.has_work():
            self.step()
        assert self.engine.check_integrity() == []
        assert self.stats.blocks_held == 0
        return self._said

    def run(self, requests: Iterable[Request]) -> dict[tuple[str, int], Said]:
        """All of them at once, to the end."""
        for request in requests:
            self.add(request)
        return self.finish()

    def close(self) -> None:
        """Give back threads."""
        self.engine.close()

    def __enter__(self) -> "RealEngine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _take(self, events: Iterable[TokenEvent]) -> None:
        for event in events:
            assert event.error is None, event.error
            said = self._said[event.request_id, event.index]
            if event.vector is not None:
                self.vectors[event.request_id] = event.vector
            said.token_ids += event.token_ids
            said.logprobs += event.logprobs
            said.prompt_logprobs += event.prompt_logprobs
            said.finish = event.finish
            said.num_cached = max(said.num_cached, event.num_cached_tokens)
