"""An engine without a model: deterministic tokens, and switches to make it misbehave.

`build_engine` stands in for the real composition root; an engine process runs it by name. The model
path may carry options: `fake?step=0.01&fail_step=3` (see `FakeOptions`).
"""

import math
import os
import signal
import sys
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

from msgspec import Struct, convert, structs

from headrace.config.engine import EngineConfig
from headrace.core.clock import Clock
from headrace.core.errors import ModelLoadError
from headrace.core.events import FinishReason, RequestTimes, TokenEvent, TokenLogprobs
from headrace.core.model_info import AdapterInfo, ModelInfo, Task
from headrace.core.request import Request, TokenSegment
from headrace.core.stats import EngineStats, StepStats
from headrace.engine.memory.events import BlockRemoved, BlockStored
from headrace.engine.messages import AdapterAnswer, AdapterOrder

VOCAB_SIZE = 512
EOS_ID = 257
EMBEDDING_SIZE = 8
BUILD = "tests.support.fake_engine:build_engine"
#: A token id in a prompt that does something to the engine (ids that no text makes).
POISON_STEP, POISON_ADD, POISON_EXIT, POISON_HANG = 500, 501, 502, 503


class FakeOptions(Struct, frozen=True):
    """What `fake?...` may set."""

    step: float = 0.0
    """Seconds that a step takes."""
    tokens: int = 0
    """End with the eos token after this many tokens; 0 runs to max_tokens."""
    fail_start: str = ""
    """Fail to start with this message."""
    hold: float = 0.0
    """Seconds for which the oldest request waits on purpose, as for a batch that is not full."""
    start: float = 0.0
    """Seconds that the start takes."""
    gate: str = ""
    """A file without which the start does not end."""
    last: str = ""
    """A file without which no sequence makes its last token: all run on until it is there."""
    ends: int = 0
    """After so many ends no sequence makes its last token; 0 bounds none."""
    hung: str = ""
    """A file that is made when the engine begins to hang."""
    max_num_seqs: int = 8
    weights: int = 0
    """Bytes that the model takes."""
    text: str = ""
    """Say this over and over, a UTF-8 byte a token, instead of letters."""
    tokenizer: str = ""
    """Directory that the HTTP process reads its tokenizer from."""


@dataclass
class _Sequence:
    request: Request
    index: int
    queued: float
    output: list[int] = field(default_factory=list)
    first_scheduled: float = 0.0
    first_token: float = 0.0


def token_at(request: Request, index: int, position: int) -> int:
    """Token of a sequence at an absolute output position: a printable byte, by seed and prompt."""
    prompt = [i for s in request.prompt if isinstance(s, TokenSegment) for i in s.token_ids]
    adapter = sum((request.adapter or "").encode())
    return 97 + (sum(prompt) + request.params.seed + index + position + adapter) % 26


def _prompt_logprobs(request: Request) -> tuple[TokenLogprobs, ...]:
    count = request.params.prompt_logprobs
    if count is None:
        return ()
    top = tuple((token, -1.0 - token) for token in range(count))
    prompt = [token for s in request.prompt if isinstance(s, TokenSegment) for token in s.token_ids]
    return tuple(TokenLogprobs(token, -2.5, 7, top) for token in prompt[1:])


def vector_of(request: Request) -> "array[float]":
    """Before it is cut and normalised: how many of the prompt's ids leave each rest."""
    vector = array("f", [0.25] * EMBEDDING_SIZE)
    for segment in request.prompt:
        for token_id in segment.token_ids if isinstance(segment, TokenSegment) else ():
            vector[token_id % EMBEDDING_SIZE] += 1.0
    return vector


class FakeEngine:
    """Behaves like engine.engine.Engine: every running sequence gets one token a step."""

    def __init__(
        self, options: FakeOptions, clock: Clock, *, record_kv_events: bool = False
    ) -> None:
        self.options = options
        self._record_kv_events = record_kv_events
        self.last_step: StepStats | None = None
        self.is_closed = False
        self.num_parked = 0
        self._clock = clock
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._stats = EngineStats(blocks_total=1000, blocks_free=1000, block_size=16)
        self._kv_events: list[object] = []
        self._adapters: dict[str, AdapterInfo] = {}
        self._answers: list[AdapterAnswer] = []

    def add(self, request: Request) -> list[TokenEvent]:
        if self._has(request, POISON_ADD):
            raise ValueError("poisoned")
        now = self._clock.monotonic()
        if request.adapter not in (None, *(a.digest for a in self._adapters.values())):
            kind = "NotFoundError"
            reason = "The adapter is not loaded."
            return [
                TokenEvent(
                    request.request_id, i, finish=FinishReason.ERROR, error=reason, error_kind=kind
                )
                for i in range(request.n)
            ]
        for index in range(request.n):
            self._waiting.append(_Sequence(request, index, now, list(request.prior_output_ids)))
        return []

    def cancel(self, request_id: str, index: int | None = None) -> list[TokenEvent]:
        gone = [
            s
            for s in (*self._waiting, *self._running)
            if s.request.request_id == request_id and index in (None, s.index)
        ]
        return [self._end(s, FinishReason.CANCELLED) for s in gone]

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def wake_at(self) -> float | None:
        if self._running or not self._waiting or not self.options.hold:
            return None
        return self._waiting[0].queued + self.options.hold

    def step(self) -> list[TokenEvent]:
        started = self._clock.monotonic()
        if (self.wake_at() or 0.0) > started:
            return []
        while self._waiting and len(self._running) < self.options.max_num_seqs:
            sequence = self._waiting.popleft()
            sequence.first_scheduled = started
            self._running.append(sequence)
            self._count(prompt_tokens=sequence.request.num_prompt_tokens)
        self._misbehave()
        if self.options.step:
            time.sleep(self.options.step)
        events = [event for s in tuple(self._running) for event in self._advance(s)]
        now = self._clock.monotonic()
        self._count(steps=1, generated_tokens=len(self._running), step_seconds=now - started)
        self.last_step = StepStats(
            step_id=self._stats.steps,
            started=started,
            seconds=now - started,
            num_prefill_tokens=0,
            num_decode_tokens=len(events),
            num_sequences=len(events),
        )
        if self._record_kv_events:
            digest = bytes(range(32))
            self._kv_events.append(BlockStored([digest], None, list(range(16)), 16))
            self._kv_events.append(BlockRemoved([digest]))
        return events

    def fail_all(self, reason: str) -> list[TokenEvent]:
        return [self._end(s, FinishReason.ERROR, reason) for s in (*self._running, *self._waiting)]

    def check_integrity(self) -> list[str]:
        return []

    def take_kv_events(self) -> list[object]:
        events, self._kv_events = self._kv_events, []
        return events

    def order_adapter(self, order: AdapterOrder) -> None:
        """Directories are adapters, known by their names; `die` ends the engine."""
        error = kind = None
        if order.path is None and self._adapters.pop(order.name, None) is None:
            error, kind = f"No adapter is named '{order.name}'.", "NotFoundError"
        if order.path is not None and Path(order.path).name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order.path is not None and order.name in self._adapters and not order.in_place:
            error, kind = f"An adapter named '{order.name}' is loaded already.", "BadRequestError"
        elif order.path is not None and not Path(order.path).is_dir():
            error, kind = f"{order.path} is no LoRA adapter.", "BadRequestError"
        elif order.path is not None:
            digest = Path(order.path).name
            self._adapters[order.name] = AdapterInfo(order.name, order.path, digest)
        loaded = tuple(self._adapters.values())
        self._answers.append(
            AdapterAnswer(
                job=order.job,
                adapters=None if error else loaded,
                error=error,
                error_kind=kind or "",
                param="lora_path" if kind == "BadRequestError" else None,
            )
        )

    def take_adapter_answers(self) -> list[AdapterAnswer]:
        answers, self._answers = self._answers, []
        return answers

    def stats(self) -> EngineStats:
        tokens = sum(s.request.num_prompt_tokens for s in self._waiting)
        return structs.replace(
            self._stats,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            waiting_tokens=tokens,
            blocks_held=len(self._running),
            blocks_free=1000 - len(self._running),
            waits_until=self.wake_at() or 0.0,
        )

    def park(self) -> None:
        self.num_parked += 1

    def close(self) -> None:
        self.is_closed = True

    def _pool(self, sequence: _Sequence) -> TokenEvent:
        """A vector that says what was asked for."""
        self._end(sequence, FinishReason.STOP)
        request = sequence.request
        pooling = request.pooling
        assert pooling is not None
        vector = vector_of(request)[: pooling.dimensions or EMBEDDING_SIZE]
        if pooling.normalize:
            length = math.hypot(*vector)
            vector = array("f", [number / length for number in vector])
        times = RequestTimes(request.arrival_time, sequence.queued, sequence.first_scheduled, 0.0)
        return TokenEvent(
            request.request_id, 0, finish=FinishReason.STOP, times=times, vector=vector.tobytes()
        )

    def _advance(self, sequence: _Sequence) -> list[TokenEvent]:
        request = sequence.request
        if request.pooling is not None:
            return [self._pool(sequence)]
        position = len(sequence.output)
        told = () if position or sequence.index else _prompt_logprobs(request)
        if request.params.max_tokens == 0:
            return [structs.replace(self._end(sequence, FinishReason.LENGTH), prompt_logprobs=told)]
        is_eos = self.options.tokens and position + 1 >= self.options.tokens
        if (is_eos or position + 1 >= request.params.max_tokens) and not self._may_end():
            return []
        token = EOS_ID if is_eos else self._next(request, sequence.index, position)
        if request.params.thinking is not None:
            from headrace.engine.executor.thinking import ThinkingState  # here: it imports numpy

            forced = ThinkingState(request.params.thinking).after(sequence.output).forced
            token = token if forced is None else forced
        sequence.output.append(token)
        is_first = not sequence.first_token
        sequence.first_token = sequence.first_token or self._clock.monotonic()
        finish = None
        if is_eos and not request.params.ignore_eos:
            finish = FinishReason.STOP
        elif position + 1 >= request.params.max_tokens:
            finish = FinishReason.LENGTH
        if finish is not None:
            self._end(sequence, finish)
        logprobs = ()
        if request.params.logprobs is not None:
            top = tuple((token + i, -0.5 - i) for i in range(request.params.logprobs))
            logprobs = (TokenLogprobs(token, -0.5, 1, top),)
        return [
            TokenEvent(
                request.request_id,
                sequence.index,
                (token,),
                logprobs,
                finish=finish,
                stop_token_id=token if finish is FinishReason.STOP else None,
                times=self._times(sequence) if is_first or finish else None,
                prompt_logprobs=told,
            )
        ]

    def _may_end(self) -> bool:
        is_let = not self.options.last or Path(self.options.last).exists()
        has_room = not self.options.ends or sum(self._stats.finished.values()) < self.options.ends
        if is_let and has_room:
            return True
        time.sleep(0.001)
        return False

    def _next(self, request: Request, index: int, position: int) -> int:
        said = self.options.text.encode()
        return said[position % len(said)] if said else token_at(request, index, position)

    def _end(
        self, sequence: _Sequence, reason: FinishReason, error: str | None = None
    ) -> TokenEvent:
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence) if sequence in self._waiting else None
        finished = dict(self._stats.finished)
        finished[reason.value] = finished.get(reason.value, 0) + 1
        self._stats = structs.replace(self._stats, finished=finished)
        return TokenEvent(
            sequence.request.request_id,
            sequence.index,
            finish=reason,
            times=self._times(sequence),
            error=error,
            error_kind="InternalError" if error else None,
        )

    def _times(self, sequence: _Sequence) -> RequestTimes:
        return RequestTimes(
            sequence.request.arrival_time,
            sequence.queued,
            sequence.first_scheduled,
            sequence.first_token,
        )

    def _count(self, **changes: float) -> None:
        totals = {name: getattr(self._stats, name) + value for name, value in changes.items()}
        self._stats = structs.replace(self._stats, **totals)

    def _misbehave(self) -> None:
        for sequence in self._running:
            if self._has(sequence.request, POISON_EXIT):
                os.kill(os.getpid(), signal.SIGKILL)
            if self._has(sequence.request, POISON_HANG):
                if self.options.hung:
                    Path(self.options.hung).touch()
                time.sleep(3600)
            if self._has(sequence.request, POISON_STEP):
                raise RuntimeError("poisoned step")

    @staticmethod
    def _has(request: Request, poison: int) -> bool:
        return any(isinstance(s, TokenSegment) and poison in s.token_ids for s in request.prompt)


@dataclass
class FakeBuilt:
    engine: FakeEngine
    info: ModelInfo


def fake_info(config: EngineConfig, options: FakeOptions) -> ModelInfo:
    return ModelInfo(
        names=config.model.served_model_name or ("fake",),
        source=config.model.model,
        path=options.tokenizer or config.model.model,
        family="fake",
        digest="0123456789abcdef",
        vocab_size=VOCAB_SIZE,
        max_context=config.model.max_context or 2048,
        block_size=16,
        num_blocks=1000,
        weight_bytes=options.weights,
        tasks=(Task.GENERATE, Task.EMBED),
        embedding_size=EMBEDDING_SIZE,
        max_text_tokens=64,
        max_num_seqs=options.max_num_seqs,
        isa="none",
        threads=1,
        phases={"build": options.start},
        lines=("memory: none needed",),
    )


def python_path() -> str:
    """PYTHONPATH for a child process that is to import what this one can."""
    return os.pathsep.join(path for path in (str(Path.cwd()), *sys.path) if path)


def build_engine(
    config: EngineConfig, clock: Clock, report, *, record_kv_events: bool = False
) -> FakeBuilt:
    _, _, query = config.model.model.partition("?")
    given = {name: values[0] for name, values in parse_qs(query).items()}
    options = convert(given, FakeOptions, strict=False)
    report("build")
    time.sleep(options.start)
    while options.gate and not Path(options.gate).exists():
        time.sleep(0.01)
    if options.fail_start:
        raise ModelLoadError(options.fail_start)
    engine = FakeEngine(options, clock, record_kv_events=record_kv_events)
    return FakeBuilt(engine, fake_info(config, options))
