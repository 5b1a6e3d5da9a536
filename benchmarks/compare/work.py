"""What every peer is given, and what is written down of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.bench.options import BenchOptions
from headrace.bench.workload import Run, make_items

FIRST_ID, LAST_ID = 1000, 30_000
"""Token ids of prefill prompts: plain words in every vocabulary that is compared."""


@dataclass(frozen=True)
class Work:
    """One round. Every peer of a round has the same prompts; the next round has others."""

    concurrency: tuple[int, ...]
    input_words: int
    output_tokens: int
    requests_per_client: int
    prefill_tokens: tuple[int, ...]
    prefill_requests: int
    starts: int
    """How often a server is started for the median time to readiness."""
    threads: int
    seed: int

    def num_requests(self, clients: int) -> int:
        """Requests of a closed loop."""
        return max(4, self.requests_per_client * clients)

    def load_seed(self, clients: int) -> int:
        """The seed of a closed loop's words."""
        return self.seed + clients

    def prompts(self, clients: int) -> list[str]:
        """The words that `headrace bench` sends with the same options and seed."""
        run = Run(label="", concurrency=clients, num_requests=self.num_requests(clients))
        options = BenchOptions(input_words=self.input_words, output_tokens=self.output_tokens)
        items = make_items(run, options, [], self.load_seed(clients))
        return [item.prompt for item in items]

    def prefill_prompts(self, tokens: int) -> list[list[int]]:
        """Random token ids; the first prompt warms up and is not counted."""
        rng = Random(f"{self.seed}:prefill:{tokens}")
        return [
            rng.choices(range(FIRST_ID, LAST_ID), k=tokens)
            for _ in range(self.prefill_requests + 1)
        ]

    def longest(self) -> int:
        """Tokens that a sequence may have, with room for words that are two tokens."""
        closed = 2 * self.input_words + self.output_tokens + 64
        return max([closed, *(tokens + 16 for tokens in self.prefill_tokens)])


@dataclass
class Figures:
    """One peer in one round. Seconds and tokens per second; keys are clients or prompt tokens."""

    ready_seconds: float = 0.0
    output_tokens_per_second: dict[int, float] = field(default_factory=dict)
    ttft_p50: dict[int, float] = field(default_factory=dict)
    ttft_p95: dict[int, float] = field(default_factory=dict)
    prefill_tokens_per_second: dict[int, float] = field(default_factory=dict)


class PeerError(Exception):
    """A peer did not do the work; the message is its own last words."""


def last_words(output: str, *, keys: Sequence[str] = ("rror", "xception", "not supported")) -> str:
    """The line of a program's output that most likely says what went wrong, and one that it announces.

    Directories are left out: they are those of whoever built the program.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    telling = [place for place, line in enumerate(lines) if any(key in line for key in keys)]
    place = telling[-1] if telling else len(lines) - 1
    said = lines[place]
    if said.endswith(":"):
        said = " ".join([said, *lines[place + 1 : place + 2]])
    return re.sub(r"(?<!\S)/\S*/", "", said)[:300]
