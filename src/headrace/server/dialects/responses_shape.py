"""Chat's deltas → a response, whole or as events."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, structs

from headrace.api import response_events as events
from headrace.api.chat import ChatLogprob
from headrace.api.response_events import ResponseEvent
from headrace.api.responses import (
    FunctionCallItem,
    IncompleteDetails,
    InputDetails,
    ItemStatus,
    OutputDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseUsage,
)
from headrace.api.usage import Usage
from headrace.completion.delta import Delta
from headrace.completion.logprobs import chat_logprobs
from headrace.completion.parts import Grown, Opened, Part, PartKind, Parts, Step
from headrace.core.errors import RequestCancelledError
from headrace.core.events import FinishReason, TokenLogprobs
from headrace.server.shapes import timings_in
from headrace.server.telemetry import Begin, Report, silent
from headrace.web.problems import answer_to
from headrace.web.streaming import DONE, Framing, named_event

#: OpenAI's clients end at `[DONE]` where it comes; Open Responses demands it.
FRAMING: Final = Framing(event=named_event, end=DONE)
_PREFIXES: Final = {PartKind.THOUGHT: "rs", PartKind.TEXT: "msg", PartKind.CALL: "fc"}
_CUT: Final = {FinishReason.LENGTH: "max_output_tokens"}


class ResponsesShape:
    """Part of Shape, for one response. Items come one after the other; each is done before the next begins."""

    framing = FRAMING

    def __init__(
        self,
        begun: Response,
        spelling: Mapping[int, bytes],
        now: Callable[[], float],
        on_end: Callable[[Response], None],
        telemetry: Begin = silent,
    ) -> None:
        """`begun` is the response before it has output; `on_end` gets it when it ends, before the client does.

        `spelling` has the bytes of every token; `now` tells the time of day.
        """
        self.begun = begun
        self._spelling = spelling
        self._now = now
        self._on_end = on_end
        self.telemetry = telemetry(self._progress)
        self._has_begun = False
        self._parts = Parts()
        self._num_events = 0
        self._encoder = msgspec.json.Encoder()

    def chunks(
        self, choice: int, delta: Delta, *, is_first: bool, usage: Callable[[], Usage]
    ) -> list[bytes]:
        """Part of Shape."""
        made = self._begin()
        steps = self._parts.push(delta)
        for step in steps:
            made += self._step(step, _status(delta, is_last=step is steps[-1]))
        if delta.finish is not None and not _has_failed(delta):
            ended = self._ended(delta, usage())
            is_cut = ended.status == "incomplete"
            kind = events.ResponseIncomplete if is_cut else events.ResponseCompleted
            timings = timings_in(self.telemetry, choice)
            made.append(kind(ended, sequence_number=self._next(), timings=timings))
        return [self._encoder.encode(event) for event in made]

    def _begin(self) -> list[ResponseEvent]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [
            events.ResponseCreated(self.begun, sequence_number=self._next()),
            events.ResponseInProgress(self.begun, sequence_number=self._next()),
        ]

    def _progress(self, _choice: int, report: Report) -> list[bytes]:
        per_token = self.telemetry is not None and self.telemetry.per_token
        told = events.ResponseInProgress(
            self.begun,
            sequence_number=0,
            prompt_progress=report.progress,
            timings=report.timings if per_token else UNSET,
        )
        made = self._begin()
        made.append(structs.replace(told, sequence_number=self._next()))
        return [self._encoder.encode(event) for event in made]

    def last_chunk(self, usage: Callable[[], Usage]) -> bytes | None:
        """Part of Shape: the end of the only choice is the end."""
        return None

    def failure(self, error: Exception, usage: Callable[[], Usage]) -> list[bytes]:
        """Part of Shape."""
        ended = self.failed(error, usage())
        event = events.ResponseFailed(ended, sequence_number=self._next())
        return [self._encoder.encode(event)]

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """Part of Shape."""
        (delta,) = choices
        self._parts.push(delta)
        return self._encoder.encode(self._ended(delta, usage))

    def failed(self, error: Exception, usage: Usage | None = None) -> Response:
        """The response after an error, which `on_end` is told of."""
        problem = answer_to(error).problem
        is_cancelled = isinstance(error, RequestCancelledError)
        code = str(problem.code or problem.type)
        ended = structs.replace(
            self.begun,
            status="cancelled" if is_cancelled else "failed",
            error=None if is_cancelled else ResponseError(code=code, message=problem.message),
            output=self._items("incomplete"),
            usage=None if usage is None else usage_of(usage),
        )
        self._on_end(ended)
        return ended

    def _ended(self, delta: Delta, usage: Usage) -> Response:
        is_cut = delta.finish is not FinishReason.STOP
        reason = None if delta.finish is None else _CUT.get(delta.finish, delta.finish.value)
        ended = structs.replace(
            self.begun,
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else int(self._now()),
            incomplete_details=IncompleteDetails(reason or "") if is_cut else None,
            output=self._items("incomplete" if is_cut else "completed"),
            usage=usage_of(usage),
        )
        self._on_end(ended)
        return ended

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1

    # -- items --------------------------------------------------------------------------------------

    def _items(self, last: ItemStatus) -> list[OutputItem]:
        parts = self._parts.all
        return [self._item(part, last if part is parts[-1] else "completed") for part in parts]

    def _id(self, part: Part) -> str:
        return f"{_PREFIXES[part.kind]}_{self.begun.id.partition('_')[2]}_{part.place}"

    def _item(self, part: Part, status: ItemStatus, *, is_empty: bool = False) -> OutputItem:
        name, text = self._id(part), part.text
        if part.kind is PartKind.CALL:
            return FunctionCallItem(
                id=name, status=status, call_id=part.call_id, name=part.name, arguments=text
            )
        if part.kind is PartKind.THOUGHT:
            thought = [] if is_empty else [ReasoningText(text)]
            return ReasoningItem(id=name, status=status, content=thought)
        said = [] if is_empty else [OutputText(text, [], self._logprobs(part.logprobs))]
        return OutputMessage(id=name, status=status, content=said)

    def _logprobs(self, positions: Sequence[TokenLogprobs]) -> list[ChatLogprob]:
        return chat_logprobs(positions, self._spelling).content if positions else []

    # -- events -------------------------------------------------------------------------------------

    def _step(self, step: Step, status: ItemStatus) -> list[ResponseEvent]:
        if isinstance(step, Opened):
            return self._opened(step.part)
        if isinstance(step, Grown):
            return [self._grown(step)]
        return self._closed(step.part, status)

    def _opened(self, part: Part) -> list[ResponseEvent]:
        item = self._item(_blank(part), "in_progress", is_empty=True)
        added = events.ItemAdded(sequence_number=self._next(), output_index=part.place, item=item)
        if part.kind is PartKind.CALL:
            return [added]
        blank = OutputText("") if part.kind is PartKind.TEXT else ReasoningText("")
        begun = events.PartAdded(
            sequence_number=self._next(), item_id=item.id, output_index=part.place, part=blank
        )
        return [added, begun]

    def _grown(self, step: Grown) -> ResponseEvent:
        part, number, name = step.part, self._next(), self._id(step.part)
        if part.kind is PartKind.TEXT:
            return events.OutputTextDelta(
                sequence_number=number,
                item_id=name,
                output_index=part.place,
                delta=step.text,
                logprobs=self._logprobs(step.logprobs),
                timings=timings_in(self.telemetry, 0),
            )
        kind = events.ArgumentsDelta if part.kind is PartKind.CALL else events.ReasoningTextDelta
        return kind(sequence_number=number, item_id=name, output_index=part.place, delta=step.text)

    def _closed(self, part: Part, status: ItemStatus) -> list[ResponseEvent]:
        item = self._item(part, status)
        made: list[ResponseEvent] = []
        place: dict[str, Any] = {"item_id": item.id, "output_index": part.place}
        match item:
            case FunctionCallItem(name=name, arguments=arguments):
                made.append(
                    events.ArgumentsDone(
                        sequence_number=self._next(), name=name, arguments=arguments, **place
                    )
                )
            case ReasoningItem(content=[thought]):
                made += [
                    events.ReasoningTextDone(
                        sequence_number=self._next(), text=thought.text, **place
                    ),
                    events.PartDone(sequence_number=self._next(), part=thought, **place),
                ]
            case OutputMessage(content=[said]):
                made += [
                    events.OutputTextDone(
                        sequence_number=self._next(),
                        text=said.text,
                        logprobs=said.logprobs or [],
                        **place,
                    ),
                    events.PartDone(sequence_number=self._next(), part=said, **place),
                ]
        done = events.ItemDone(sequence_number=self._next(), output_index=part.place, item=item)
        return [*made, done]


def usage_of(usage: Usage) -> ResponseUsage:
    """The same counts under OpenAI's newer names."""
    given, made = usage.prompt_tokens_details, usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(0 if given is UNSET else given.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(0 if made is UNSET else made.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


def _blank(part: Part) -> Part:
    """The part as it was when it began."""
    return Part(part.kind, part.place, part.call_id, part.name)


def _status(delta: Delta, *, is_last: bool) -> ItemStatus:
    """Of an item that is closed by this delta: only an answer's last one can be cut."""
    is_cut = is_last and delta.finish not in (None, FinishReason.STOP)
    return "incomplete" if is_cut else "completed"


def _has_failed(delta: Delta) -> bool:
    return delta.finish in (FinishReason.ERROR, FinishReason.CANCELLED)
