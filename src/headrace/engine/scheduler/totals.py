"""Totals of one engine life. They never go down."""

from headrace.core.events import FinishReason
from headrace.engine.scheduler.sequence import Sequence


class Totals:
    """Plain counters. Conservation: started = finished by reason + running + waiting."""

    __slots__ = (
        "cached_tokens",
        "finished",
        "generated_tokens",
        "integrity_failures",
        "preemptions",
        "prompt_tokens",
        "started",
        "step_seconds",
        "steps",
    )

    def __init__(self) -> None:
        self.started = 0
        self.steps = 0
        self.step_seconds = 0.0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.integrity_failures = 0
        self.finished = {reason.value: 0 for reason in FinishReason}

    def admitted(self, sequence: Sequence, num_cached: int) -> None:
        """A sequence got its first slot; returns from preemption do not count again."""
        if sequence.life == 0:
            self.prompt_tokens += sequence.group.num_prompt
            self.cached_tokens += min(num_cached, sequence.group.num_prompt)
