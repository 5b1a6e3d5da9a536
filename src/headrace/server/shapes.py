"""Deltas → the JSON of the two APIs. One shape answers one HTTP request."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headrace.api import chat, completions
from headrace.api.fields import GenerationFields, StreamOptions
from headrace.api.problems import ProblemBody
from headrace.api.prompts import PromptLogprobs
from headrace.api.telemetry import PromptProgress, Timings
from headrace.api.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from headrace.completion.delta import Delta
from headrace.completion.logprobs import (
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    prompt_logprobs,
)
from headrace.completion.respond import TokenCounts
from headrace.core.events import FinishReason
from headrace.core.model_info import ModelInfo
from headrace.preprocess.reading import Reading
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.messages import MessageStyle
from headrace.server.telemetry import Begin, Report, Telemetry, silent
from headrace.web.problems import answer_to
from headrace.web.streaming import PLAIN, Framing

#: OpenAI knows no "ran out of time": the answer was cut by a limit, and `stop_reason` says which. Nor does
#: it know "error": in a stream it ends the choice, and an error object at the stream's end says why.
_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMEOUT: "length",
    FinishReason.SHUTDOWN: "length",
    FinishReason.ERROR: "error",
    FinishReason.CANCELLED: "error",
}


class Head(Struct, frozen=True):
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


class Shape(Protocol):
    """How one API writes an answer."""

    framing: Framing

    @property
    def telemetry(self) -> Telemetry | None:
        """What is told of the answer's pace, where the client asked."""
        ...

    def chunks(
        self, choice: int, delta: Delta, *, is_first: bool, usage: Callable[[], Usage]
    ) -> list[bytes]:
        """The JSON objects of a stream that one delta makes; `usage` is asked for only when it is shown."""
        ...

    def last_chunk(self, usage: Callable[[], Usage]) -> bytes | None:
        """The object after all choices have ended: the usage, if the client asked for it."""
        ...

    def failure(self, error: Exception, usage: Callable[[], Usage]) -> list[bytes]:
        """The objects that tell why a stream broke, after the ends of its choices."""
        ...

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """The response of a request that does not stream; choices in order."""
        ...


def fingerprint(info: ModelInfo) -> str:
    """Same fingerprint, seed and request: same tokens. The instruction set alone may change them."""
    return f"b1-{info.digest[:12]}-{info.isa}"


def usage_of(counts: Sequence[TokenCounts]) -> Usage:
    """The sum over the prompts of one HTTP request."""
    prompt = sum(c.prompt for c in counts)
    completion = sum(c.completion for c in counts)
    reasoning = sum(c.reasoning for c in counts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(c.cached for c in counts)),
        completion_tokens_details=(
            CompletionTokensDetails(reasoning_tokens=reasoning) if reasoning else UNSET
        ),
    )


class _Reporting:
    """What the client wants to know of usage while it streams."""

    def __init__(self, options: StreamOptions | None) -> None:
        self.at_end = bool(options and options.include_usage)
        self._always = self.at_end and bool(options and options.continuous_usage_stats)

    def on_chunk(self, usage: Callable[[], Usage]) -> Usage | UnsetType | None:
        """The `usage` of a chunk with choices."""
        if self._always:
            return usage()
        return None if self.at_end else UNSET


class ChatShape:
    """`/v1/chat/completions`: a role first, then content, then a finish with an empty delta."""

    framing = PLAIN

    def __init__(
        self,
        head: Head,
        request: GenerationFields,
        tokenizer: Tokenizer,
        reading: Reading = Reading(),  # noqa: B008 - frozen
        telemetry: Begin = silent,
        verbose: chat.VerbosePrompt | UnsetType = UNSET,
        *,
        opens_with_null: bool = False,
    ) -> None:
        """`opens_with_null`: as llama.cpp, the first chunk has no content rather than an empty text."""
        self._head = head
        self.telemetry = telemetry(self._progress)
        self._verbose = verbose
        # Whoever asks in llama.cpp's words gets its first chunk.
        self._opening = None if opens_with_null or self.telemetry is not None else ""
        self._reporting = _Reporting(request.stream_options)
        self._tokenizer = tokenizer
        self._style = MessageStyle.of(reading)
        self._wants_ids = bool(request.return_token_ids)
        self._num_prompt_top = request.prompt_logprobs
        self._encoder = msgspec.json.Encoder()

    def chunks(
        self, choice: int, delta: Delta, *, is_first: bool, usage: Callable[[], Usage]
    ) -> list[bytes]:
        """Part of Shape."""
        made = []
        ids = self._token_ids(delta)
        if is_first:
            opening = chat.Delta(role="assistant", content=self._opening, refusal=None)
            made.append(chat.ChunkChoice(index=choice, delta=opening))
        piece = self._style.piece(delta)
        if piece is not None:
            logprobs = self._logprobs(delta)
            made.append(
                chat.ChunkChoice(index=choice, delta=piece, logprobs=logprobs, token_ids=ids)
            )
            ids = UNSET
        if delta.finish is not None:
            made.append(
                chat.ChunkChoice(
                    index=choice,
                    delta=chat.Delta(),
                    finish_reason=self._style.finish_word(delta, finish_word(delta.finish)),
                    stop_reason=_stop_reason(delta),
                    token_ids=ids,
                )
            )
        first_ids, timings = self._prompt_ids(delta), timings_in(self.telemetry, choice)
        return [
            self._chunk(
                [item],
                self._reporting.on_chunk(usage),
                UNSET if place else first_ids,
                UNSET if item.delta.role is not UNSET else timings,
            )
            for place, item in enumerate(made)
        ]

    def last_chunk(self, usage: Callable[[], Usage]) -> bytes | None:
        """Part of Shape."""
        if not self._reporting.at_end:
            return None
        return self._chunk([], usage(), timings=timings_in(self.telemetry, 0))

    def failure(self, error: Exception, usage: Callable[[], Usage]) -> list[bytes]:
        """Part of Shape."""
        return [problem_chunk(error)]

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """Part of Shape."""
        made = [
            chat.ChatChoice(
                index=index,
                message=self._style.whole(delta),
                logprobs=self._logprobs(delta),
                finish_reason=self._style.finish_word(delta, finish_word(delta.finish)),
                stop_reason=_stop_reason(delta),
                token_ids=self._token_ids(delta),
            )
            for index, delta in enumerate(choices)
        ]
        return self._encoder.encode(
            chat.ChatCompletion(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                choices=made,
                usage=usage,
                system_fingerprint=self._head.fingerprint,
                prompt_token_ids=self._prompt_ids(choices[0]),
                prompt_logprobs=_prompt_logprobs(choices[0], self._num_prompt_top, self._tokenizer),
                timings=timings_in(self.telemetry, 0),
                verbose=self._verbose,
            )
        )

    def _progress(self, choice: int, report: Report) -> list[bytes]:
        item = chat.ChunkChoice(index=choice, delta=chat.Delta())
        return [self._chunk([item], UNSET, report=report)]

    def _token_ids(self, delta: Delta) -> list[int] | UnsetType:
        return list(delta.token_ids) if self._wants_ids else UNSET

    def _prompt_ids(self, delta: Delta) -> list[int] | UnsetType:
        return list(delta.prompt.token_ids) if self._wants_ids and delta.prompt else UNSET

    def _chunk(
        self,
        choices: list[chat.ChunkChoice],
        usage: Usage | UnsetType | None,
        prompt_ids: list[int] | UnsetType = UNSET,
        timings: Timings | UnsetType = UNSET,
        report: Report | None = None,
    ) -> bytes:
        progress = UNSET if report is None else report.progress
        if report is not None and self.telemetry is not None and self.telemetry.per_token:
            timings = report.timings
        return self._encoder.encode(
            chat.ChatChunk(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                system_fingerprint=self._head.fingerprint,
                choices=choices,
                usage=usage,
                prompt_token_ids=prompt_ids,
                timings=timings,
                prompt_progress=progress,
            )
        )

    def _logprobs(self, delta: Delta) -> chat.ChatLogprobs | None:
        if not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._tokenizer.all_bytes)


class CompletionShape:
    """`/v1/completions`: chunks and the whole have one shape."""

    framing = PLAIN

    def __init__(
        self,
        head: Head,
        request: completions.CompletionRequest,
        tokenizer: Tokenizer,
        telemetry: Begin = silent,
    ) -> None:
        self._head = head
        self.telemetry = telemetry(self._progress)
        self._reporting = _Reporting(request.stream_options)
        self._request = request
        self._tokenizer = tokenizer
        self._encoder = msgspec.json.Encoder()

    def chunks(
        self, choice: int, delta: Delta, *, is_first: bool, usage: Callable[[], Usage]
    ) -> list[bytes]:
        """Part of Shape."""
        reported, timings = self._reporting.on_chunk(usage), timings_in(self.telemetry, choice)
        return [self._object([self._choice(choice, delta)], reported, timings)]

    def last_chunk(self, usage: Callable[[], Usage]) -> bytes | None:
        """Part of Shape."""
        if not self._reporting.at_end:
            return None
        return self._object([], usage(), timings_in(self.telemetry, 0))

    def failure(self, error: Exception, usage: Callable[[], Usage]) -> list[bytes]:
        """Part of Shape."""
        return [problem_chunk(error)]

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """Part of Shape."""
        made = [self._choice(index, delta) for index, delta in enumerate(choices)]
        return self._object(made, usage, timings_in(self.telemetry, 0))

    def _progress(self, choice: int, report: Report) -> list[bytes]:
        per_token = self.telemetry is not None and self.telemetry.per_token
        timings = report.timings if per_token else UNSET
        item = completions.CompletionChoice(index=choice, text="")
        return [self._object([item], UNSET, timings, report.progress)]

    def _choice(self, index: int, delta: Delta) -> completions.CompletionChoice:
        request, prompt = self._request, delta.prompt
        wants_ids = bool(request.return_token_ids)
        echo = prompt.text if prompt is not None and request.echo else ""
        return completions.CompletionChoice(
            index=index,
            text=echo + delta.text,
            logprobs=self._logprobs(delta),
            finish_reason=None if delta.finish is None else finish_word(delta.finish),
            stop_reason=_stop_reason(delta),
            token_ids=list(delta.token_ids) if wants_ids else UNSET,
            prompt_token_ids=list(prompt.token_ids) if prompt and wants_ids else UNSET,
            prompt_logprobs=_prompt_logprobs(delta, request.prompt_logprobs, self._tokenizer),
        )

    def _logprobs(self, delta: Delta) -> completions.CompletionLogprobs | None:
        request, table, own = self._request, self._tokenizer.all_bytes, None
        if request.logprobs is None:
            return None
        if delta.logprobs:
            own = completion_logprobs(delta.logprobs, delta.text_offsets, table)
        if delta.prompt is not None and request.echo:
            return echoed_logprobs(delta.prompt, own, request.logprobs, table)
        return own

    def _object(
        self,
        choices: list[completions.CompletionChoice],
        usage: Usage | UnsetType | None,
        timings: Timings | UnsetType,
        progress: PromptProgress | UnsetType = UNSET,
    ) -> bytes:
        return self._encoder.encode(
            completions.Completion(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                choices=choices,
                system_fingerprint=self._head.fingerprint,
                usage=usage,
                timings=timings,
                prompt_progress=progress,
            )
        )


def timings_in(telemetry: Telemetry | None, choice: int) -> Timings | UnsetType:
    """What a client that wants timings is told beside what a choice says."""
    return UNSET if telemetry is None or not telemetry.per_token else telemetry.timings(choice)


def problem_chunk(error: Exception) -> bytes:
    """The error object in a stream."""
    return msgspec.json.encode(ProblemBody(error=answer_to(error).problem))


def finish_word(finish: FinishReason | None) -> str:
    """OpenAI's word for an end, where it has one."""
    return _FINISH.get(finish, "stop") if finish is not None else "stop"


def _prompt_logprobs(
    delta: Delta, num_top: int | None, tokenizer: Tokenizer
) -> PromptLogprobs | UnsetType:
    if num_top is None or delta.prompt is None:
        return UNSET
    return prompt_logprobs(delta.prompt, num_top, tokenizer.all_bytes)


def _stop_reason(delta: Delta) -> int | str | UnsetType | None:
    if delta.finish in (FinishReason.TIMEOUT, FinishReason.SHUTDOWN):
        return delta.finish.value
    return UNSET if delta.stop_reason is None else delta.stop_reason
