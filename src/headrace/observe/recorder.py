"""Turns what an engine says, and what its requests go through, into metrics."""

from collections.abc import Sequence

from headrace.core.clock import Clock
from headrace.core.events import FinishReason, RequestTimes, TokenEvent
from headrace.core.model_info import ModelInfo
from headrace.core.stats import EngineStats, ModelLoad, ReplicaState, StepStats
from headrace.observe import catalogue as names
from headrace.observe.metric import Metric
from headrace.observe.metrics import Histogram, Metrics
from headrace.observe.rates import Rate
from headrace.observe.timeline import SequenceTimes, Timeline

#: Totals in EngineStats and the counters that they feed.
_TOTALS = (
    ("steps", names.STEPS),
    ("prompt_tokens", names.PROMPT_TOKENS),
    ("cached_tokens", names.CACHED_TOKENS),
    ("generated_tokens", names.GENERATION_TOKENS),
    ("preemptions", names.PREEMPTIONS),
    ("integrity_failures", names.INTEGRITY_FAILURES),
)


class EngineRecorder:
    """The metrics of one engine, in the HTTP process."""

    def __init__(self, metrics: Metrics, model: str, clock: Clock) -> None:
        self._metrics = metrics
        self._labels = (model,)
        self._clock = clock
        self._stats = EngineStats()
        self._prefill_total = 0.0
        self._prefill = Rate(10.0)
        self._decode = Rate(10.0)
        self._busy = Rate(10.0)
        self._prompt = Rate(60.0)
        self._cached = Rate(60.0)
        self._step_times = {
            kind: metrics.histogram(names.STEP_TIME, (*self._labels, kind))
            for kind in ("prefill", "decode", "mixed")
        }
        self._step_size = metrics.histogram(names.STEP_SIZE, self._labels)
        for metric in (names.REQUESTS_STARTED, names.ENGINE_RESTARTS, *(m for _, m in _TOTALS)):
            metrics.add(metric, self._labels, 0.0)
        self._set_gauges(self._stats)

    @property
    def stats(self) -> EngineStats:
        """The last that the engine said."""
        return self._stats

    def became_ready(self, info: ModelInfo, phases: dict[str, float]) -> None:
        """The engine is up: its facts, and what its start cost."""
        for phase, seconds in phases.items():
            self._metrics.set(names.START_PHASES, (*self._labels, phase), seconds)
        shape = (str(info.block_size), str(info.num_blocks))
        self._metrics.set(names.CACHE_CONFIG, (*self._labels, *shape), 1.0)
        self._metrics.set(names.MAX_SEQUENCES, self._labels, info.max_num_seqs)
        self._tell_model(info)
        self._stats = EngineStats(
            blocks_total=info.num_blocks, blocks_free=info.num_blocks, block_size=info.block_size
        )
        self._set_gauges(self._stats)

    def _tell_model(self, info: ModelInfo) -> None:
        put, labels = self._metrics.set, self._labels
        put(names.MODEL_INFO, (*labels, info.kv_format, info.isa, str(info.threads)), 1.0)
        put(names.MODEL_WEIGHT_BYTES, labels, info.weight_bytes)
        put(names.MODEL_STEP_BYTES, labels, info.step_bytes)
        put(names.MODEL_PARAMETERS, labels, info.parameters)
        tokens = info.num_blocks * info.block_size
        put(names.KV_BYTES_PER_TOKEN, labels, info.kv_bytes / tokens if tokens else 0.0)

    def restarted(self) -> None:
        """The engine process was started again; its totals begin at 0."""
        self._metrics.add(names.ENGINE_RESTARTS, self._labels)
        self._stats = EngineStats()
        self._set_gauges(self._stats)

    def unloaded(self) -> None:
        """The engine has no model any more: it holds and runs nothing."""
        self._stats = EngineStats()
        self._set_gauges(self._stats)

    def record(self, stats: EngineStats | None, steps: Sequence[StepStats]) -> None:
        """Take in one update."""
        for step in steps:
            self._record_step(step)
        if stats is None:
            return
        for field, metric in _TOTALS:
            grown = getattr(stats, field) - getattr(self._stats, field)
            self._metrics.add(metric, self._labels, max(0, grown))
        self._stats = stats
        self._set_gauges(stats)
        now = self._clock.monotonic()
        self._prefill.record(now, self._prefill_total)
        self._busy.record(now, stats.step_seconds)
        self._decode.record(now, self._metrics.value(names.GENERATION_TOKENS, self._labels))
        self._prompt.record(now, self._metrics.value(names.PROMPT_TOKENS, self._labels))
        self._cached.record(now, self._metrics.value(names.CACHED_TOKENS, self._labels))

    def load(
        self, *, name: str, state: ReplicaState, info: ModelInfo | None, idle: float
    ) -> ModelLoad:
        """What `/load` tells of this model."""
        now = self._clock.monotonic()
        stats = self._stats
        prompt = self._prompt.growth(now)
        return ModelLoad(
            name=name,
            state=state,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            max_num_seqs=info.max_num_seqs if info is not None else 0,
            outstanding_tokens=stats.waiting_tokens + stats.running_tokens,
            queued_tokens=stats.waiting_tokens,
            oldest_wait_seconds=stats.oldest_wait,
            kv_blocks_total=stats.blocks_total,
            kv_blocks_used=stats.blocks_held,
            kv_usage=_share(stats.blocks_held, stats.blocks_total),
            prefix_hit_rate=_share(self._cached.growth(now), prompt),
            prefill_tokens_per_second=self._prefill.per_second(now),
            decode_tokens_per_second=self._decode.per_second(now),
            memory_bytes=0 if info is None else info.memory_bytes,
            idle_seconds=idle,
            busy=min(1.0, self._busy.per_second(now)),
        )

    def _record_step(self, step: StepStats) -> None:
        kind = "mixed"
        if not step.num_decode_tokens:
            kind = "prefill"
        elif not step.num_prefill_tokens:
            kind = "decode"
        self._step_times[kind].observe(step.seconds)
        for part, tokens in (
            ("prefill", step.num_prefill_tokens),
            ("decode", step.num_decode_tokens),
        ):
            self._metrics.add(names.STEP_TOKENS_RUN, (*self._labels, part), tokens)
        self._step_size.observe(step.num_prefill_tokens + step.num_decode_tokens)
        self._prefill_total += step.num_prefill_tokens
        self._metrics.add(names.STEP_SEQUENCES, self._labels, step.num_sequences)
        for phase, seconds in (
            ("inputs", step.inputs_seconds),
            ("model", step.model_seconds),
            ("sample", step.sample_seconds),
        ):
            self._metrics.add(names.STEP_PHASE_TIME, (*self._labels, phase), seconds)

    def _set_gauges(self, stats: EngineStats) -> None:
        put, labels = self._metrics.set, self._labels
        put(names.REQUESTS_RUNNING, labels, stats.num_running)
        put(names.REQUESTS_WAITING, labels, stats.num_waiting)
        put(names.QUEUE_TOKENS, labels, stats.waiting_tokens)
        put(names.QUEUE_OLDEST, labels, stats.oldest_wait)
        put(names.KV_USAGE, labels, _share(stats.blocks_held, stats.blocks_total))
        put(names.KV_BLOCKS, (*labels, "free"), stats.blocks_free)
        put(names.KV_BLOCKS, (*labels, "cached"), stats.blocks_cached)
        put(names.KV_BLOCKS, (*labels, "held"), stats.blocks_held)


class RequestRecorder:
    """The metrics of requests, event by event. `started = finished + open` at any time."""

    def __init__(
        self, metrics: Metrics, model: str, clock: Clock, timeline: Timeline | None = None
    ) -> None:
        self._metrics = metrics
        self._labels = (model,)
        self._clock = clock
        self._timeline = timeline
        self._longest = 0

        def histogram(metric: Metric) -> Histogram:
            return metrics.histogram(metric, self._labels)

        self.ttft = histogram(names.TTFT)
        self.itl = histogram(names.ITL)
        self._tpot = histogram(names.TPOT)
        self._e2e = histogram(names.E2E)
        self._queue = histogram(names.QUEUE_TIME)
        self._prefill = histogram(names.PREFILL_TIME)
        self._decode = histogram(names.DECODE_TIME)
        self._inference = histogram(names.INFERENCE_TIME)
        self._prompt_tokens = histogram(names.REQUEST_PROMPT_TOKENS)
        self._generation_tokens = histogram(names.REQUEST_GENERATION_TOKENS)

    def sequence(self, arrival: float, num_prompt_tokens: int) -> "SequenceRecorder":
        """A sequence was handed to the engine."""
        self._metrics.add(names.REQUESTS_STARTED, self._labels)
        return SequenceRecorder(self, self._clock, arrival, num_prompt_tokens)

    def finished(self, sequence: "SequenceRecorder", reason: str, now: float) -> None:
        """Called by SequenceRecorder."""
        self._metrics.add(names.REQUESTS_FINISHED, (*self._labels, reason))
        if not sequence.num_tokens:
            return
        self._e2e.observe(now - sequence.arrival)
        self._prompt_tokens.observe(sequence.num_prompt_tokens)
        self._generation_tokens.observe(sequence.num_tokens)
        self._longest = max(self._longest, sequence.num_prompt_tokens + sequence.num_tokens)
        self._metrics.set(names.LONGEST_SEQUENCE, self._labels, self._longest)
        if sequence.num_tokens > 1:
            decode = sequence.last_token - sequence.first_token
            self._tpot.observe(decode / (sequence.num_tokens - 1))
        self._decode.observe(sequence.last_token - sequence.first_token)
        times = sequence.times
        if times is not None and times.first_scheduled:
            self._queue.observe(max(0.0, times.first_scheduled - times.queued))
            self._prefill.observe(max(0.0, times.first_token - times.first_scheduled))
            self._inference.observe(max(0.0, sequence.last_token - times.first_scheduled))
            if self._timeline is not None:
                self._timeline.note_sequence(
                    SequenceTimes(
                        sequence.request_id,
                        times,
                        sequence.last_token,
                        sequence.num_prompt_tokens,
                        sequence.num_tokens,
                        reason,
                    )
                )


class SequenceRecorder:
    """One sequence from submission to its one end."""

    __slots__ = (
        "_clock", "_is_finished", "_requests", "arrival", "first_token", "last_token",
        "num_prompt_tokens", "num_tokens", "reason", "request_id", "times",
    )  # fmt: skip

    def __init__(
        self, requests: RequestRecorder, clock: Clock, arrival: float, num_prompt_tokens: int
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._is_finished = False
        self.arrival = arrival
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0
        self.first_token = 0.0
        self.last_token = 0.0
        self.request_id = ""
        self.reason = ""
        """Why it ended, once it has."""
        self.times: RequestTimes | None = None

    def observe(self, event: TokenEvent) -> None:
        """Take in an event. Its finish reason does not end the record: `finish` does, because a stop
        string ends a sequence that the engine has only cancelled.
        """
        if event.times is not None:
            self.times = event.times
            self.request_id = event.request_id
        num_new = len(event.token_ids)
        if not num_new:
            return
        now = self._clock.monotonic()
        if self.num_tokens:
            # Tokens that came together came in one interval.
            self._requests.itl.observe((now - self.last_token) / num_new, num_new)
        else:
            self.first_token = now
            self._requests.ttft.observe(now - self.arrival)
        self.last_token = now
        self.num_tokens += num_new

    def finish(self, reason: FinishReason | str) -> None:
        """Count its end, once."""
        if not self._is_finished:
            self._is_finished = True
            self.reason = str(reason)
            self._requests.finished(self, str(reason), self._clock.monotonic())


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0
