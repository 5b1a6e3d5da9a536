"""A profile of a real server: a short load at several lengths and batch sizes, and a line through what it took.

Prompts are sent one by one for what prefill costs, and batches of equal requests for what a decoding step costs: while
all of a batch decode, the time between two tokens is one step.
"""

import asyncio
import http.client
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Any

import msgspec

from headrace.bench.client import Outcome, Target, parse_url, send
from headrace.bench.measure import num_output_tokens, ttft
from headrace.bench.session import ask, first_model
from headrace.bench.simulate.fit import Sample, fit
from headrace.bench.simulate.profile import Profile, StepTime
from headrace.bench.words import random_text
from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError

#: Words of prompts that are sent alone; longer ones than the context are left out.
PROMPTS = (16, 64, 160, 320, 500, 900, 1500)
#: Requests at once, and words of their prompts.
BATCHES = ((1, 32), (2, 32), (4, 32), (8, 32), (16, 32), (1, 700), (4, 700), (8, 400))
_REPEATS = 3
_OUTPUT = 48
_TIMEOUT = 120.0
#: Gaps between tokens of a batch that must have been seen.
_MIN_GAPS = 5


def calibrate(
    url: str,
    api_key: str | None,
    clock: Clock,
    *,
    seed: int,
    budget: int,
    boot_seconds: float | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Profile:
    """The profile of the server at `url`, whose steps take at most `budget` tokens. Takes about a minute on a CPU.

    `show` is told what is measured. Raises ConfigError for a server that cannot be asked, and UnavailableError for one
    that does not answer.
    """
    target = parse_url(url, api_key)
    model = first_model(target, url)
    facts = _facts(target)
    probe = _Probe(target, model, clock, Random(seed))
    samples = asyncio.run(probe.run(facts, budget, show))
    found = fit(samples)
    fixed, prefill, decode, attended, request = found.coefficients
    if prefill <= 0 or fixed + decode <= 0:
        raise UnavailableError(
            "The server's times tell nothing: something else must have used the machine."
        )
    values: dict[str, Any] = {"boot_seconds": boot_seconds} if boot_seconds is not None else {}
    return Profile(
        model=model,
        source=f"{len(samples)} measurements over HTTP",
        step=StepTime(
            fixed=fixed, prefill_token=prefill, decode_row=decode, attended_token=attended
        ),
        request_seconds=request,
        residual=found.residual,
        max_num_batched_tokens=budget,
        **facts,
        **values,
    )


class _Probe:
    def __init__(self, target: Target, model: str, clock: Clock, rng: Random) -> None:
        self._target = target
        self._model = model
        self._clock = clock
        self._rng = rng

    async def run(
        self, facts: dict[str, Any], budget: int, show: Callable[[str], None]
    ) -> list[Sample]:
        room = facts.get("max_context", 2048) - _OUTPUT - 32
        slots = facts.get("max_num_seqs", 64)
        await self._send(32, 8)  # the first request of a server pays for more than its tokens
        samples = []
        for words in (w for w in PROMPTS if w <= room):
            times = [await self._send(words, 2) for _ in range(_REPEATS)]
            seconds = median(map(ttft, times))
            show(f"a prompt of {times[0].prompt_tokens} tokens: {1000 * seconds:.1f} ms")
            samples.append(_prefill(seconds, times[0].prompt_tokens, budget))
        for size, words in ((s, w) for s, w in BATCHES if s <= slots and w <= room):
            found = [s for _ in range(_REPEATS) if (s := await self._batch(size, words))]
            if not found:
                continue
            found.sort(key=lambda sample: sample.seconds)
            sample = found[len(found) // 2]
            show(f"a step of {size} sequences of {words} words: {1000 * sample.seconds:.1f} ms")
            samples.append(sample)
        return samples

    async def _batch(self, size: int, words: int) -> Sample | None:
        """A step while all of them decode; None if that was too short to tell."""
        outcomes = await asyncio.gather(*(self._send(words, _OUTPUT) for _ in range(size)))
        begin = max(outcome.chunks[0] for outcome in outcomes)
        end = min(outcome.chunks[-1] for outcome in outcomes)
        gaps = [
            later - earlier
            for outcome in outcomes
            for earlier, later in zip(outcome.chunks, outcome.chunks[1:], strict=False)
            if earlier >= begin and later <= end
        ]
        if len(gaps) < _MIN_GAPS * size:
            return None
        # The mean, as chunks that come together hide where a step ends; no batch has a prompt in it here.
        seconds = sum(gaps) / len(gaps)
        context = sum(o.prompt_tokens + num_output_tokens(o) / 2 for o in outcomes)
        return Sample(seconds, 1.0, 0.0, float(size), context, 0.0)

    async def _send(self, words: int, max_tokens: int) -> Outcome:
        body = msgspec.json.encode(
            {
                "model": self._model,
                "prompt": random_text(self._rng, words),
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        outcome = await send(
            self._target,
            self._target.request("POST", "/v1/completions", body),
            due=self._clock.monotonic(),
            time_limit=_TIMEOUT,
            clock=self._clock,
        )
        if outcome.error is not None:
            raise UnavailableError(
                f"The server failed: {outcome.error} {outcome.detail}".strip() + "."
            )
        if not outcome.prompt_tokens:
            outcome.prompt_tokens = words
        return outcome


def _prefill(seconds: float, tokens: int, budget: int) -> Sample:
    """The first token of a prompt that runs alone: its steps, and the way there and back."""
    steps = -(-tokens // budget)
    return Sample(seconds, float(steps), float(tokens), 0.0, tokens * (tokens + 1) / 2, 1.0)


def _facts(target: Target) -> dict[str, Any]:
    """What the server tells of its bounds, as fields of Profile; what it does not tell is left out."""
    found: dict[str, Any] = {}
    load = _asked(target, "/load")
    if isinstance(slots := load.get("max_num_seqs"), int) and 1 <= slots <= 4096:
        found["max_num_seqs"] = slots
    if isinstance(blocks := load.get("kv_blocks_total"), int) and blocks > 1:
        found["kv_tokens"] = blocks * 16
    cards: Sequence[Any] = _asked(target, "/v1/models").get("data") or []
    for card in cards[:1]:
        context = card.get("max_model_len") if isinstance(card, dict) else None
        if isinstance(context, int) and context > 1:
            found["max_context"] = context
    return found


def _asked(target: Target, path: str) -> dict[str, Any]:
    try:
        answer = ask(target, path)
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return {}
    return answer if isinstance(answer, dict) else {}
