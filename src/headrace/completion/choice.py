"""One sequence of a request, from its first token to its end.

A small state machine: any number of deltas, then exactly one that carries a finish, on every path; what
comes later is dropped. A choice's text, token ids, log-probabilities and usage all end at the token that
completed a stop string or pattern. Usage counts token ids and nothing else. Stop strings are looked for in what is
said, not in reasoning and calls.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from headrace.completion.call_ids import CallIds
from headrace.completion.delta import CallDelta, Delta, join_calls
from headrace.completion.detokenizer import Detokenizer
from headrace.completion.pieces import CallArguments, CallBegun, Piece, Said, Thought
from headrace.completion.reader import AnswerReader
from headrace.completion.stop import Passed, StopMatcher, Stops
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request
from headrace.preprocess.reading import Reading
from headrace.preprocess.spelling import TokenBytes
from headrace.preprocess.tokenizer import Tokenizer


class TextOptions(Struct, frozen=True, kw_only=True):
    """How token ids become text."""

    include_stop: bool = False
    """The stop string, or what matched a stop pattern, is part of its text."""
    skip_special: bool = True
    """Special tokens are left out of the text."""
    strips_space: bool = False
    """Drop one space at the start: for answers that stand alone, where the tokenizer adds one."""
    tells_prompt: bool = False
    """The first delta of each choice has a report of the prompt."""
    echoes: bool = False
    """The prompt's text stands before the choice's: offsets count from its beginning."""
    num_best: int = 0
    """Only so many choices are given, those of the best tokens; 0 gives all."""
    reading: Reading = Reading()
    """What is looked for in the text beside stop strings."""


class Outcome(Struct, frozen=True):
    """What one event led to."""

    delta: Delta | None = None
    """None while there is nothing to show (half a character, the start of a stop string)."""
    cancel: bool = False
    """The engine does not know that this sequence has ended: cancel (request id, index) now."""
    token_ids: tuple[int, ...] = ()
    """What the choice gained by this event alone, shown or held back."""


class Choice:
    """See the module."""

    def __init__(
        self,
        index: int,
        request: Request,
        tokenizer: Tokenizer,
        options: TextOptions,
        stops: Stops,
        first_offset: int = 0,
    ) -> None:
        """`first_offset`: characters before its text, for text offsets."""
        strips = options.strips_space and tokenizer.facts.strips_space
        reading = options.reading
        self.index = index
        self.is_done = False
        self.num_tokens = 0
        self.num_thought_tokens = 0
        self._detokenizer = Detokenizer(_spelling(tokenizer, options), strips_space=strips)
        self._reader = None if reading.is_plain else AnswerReader(reading)
        self._call_ids = CallIds(reading)
        self._matcher = StopMatcher(stops, include_stop=options.include_stop)
        self._has_stops = bool(stops)
        self._min_tokens = request.params.min_tokens
        self._wants_logprobs = request.params.logprobs is not None
        self._stop_token_ids = frozenset(request.params.stop_token_ids)
        self._length = first_offset
        self._num_calls = 0
        self._held = _Held()
        self._prior_end = self._replay(request.prior_output_ids)

    def push(self, event: TokenEvent) -> Outcome:
        """See `Responder.push`."""
        if self.is_done:
            return Outcome()
        if self._prior_end is not None:
            return Outcome(self._stop_at("", self._prior_end.stop), cancel=event.finish is None)
        num_visible = len(event.token_ids)
        if event.stop_token_id is not None and num_visible:
            num_visible -= 1
        num_held = len(self._held.token_ids)
        passed = self._take(event, num_visible)
        gained = tuple(self._held.token_ids[num_held:])
        delta = self._show(passed, event)
        has_ended = delta is not None and delta.finish is not None
        return Outcome(delta, cancel=has_ended and event.finish is None, token_ids=gained)

    def _show(self, passed: Passed, event: TokenEvent) -> Delta | None:
        if self._is_over(passed):
            return self._stop_at(passed.text, passed.stop)
        if event.finish is not None:
            return self._finish(passed.text, event, event.finish)
        has_news = passed.text or self._held.thoughts or self._held.calls
        return self._release(passed.text) if has_news else None

    def _take(self, event: TokenEvent, num_visible: int) -> Passed:
        """Count and hold the event's tokens up to one that ends the text."""
        if not self._has_stops and not self._wants_logprobs and self._reader is None:
            self.num_tokens += len(event.token_ids)
            self._held.token_ids += event.token_ids
            return Passed(self._detokenizer.push_all(event.token_ids[:num_visible]))
        pieces: list[str] = []
        for place, token_id in enumerate(event.token_ids):
            self._held.token_ids.append(token_id)
            if self._wants_logprobs and place < len(event.logprobs):
                self._held.logprobs.append(event.logprobs[place])
                self._held.offsets.append(self._length)
            passed = self._advance(token_id, is_visible=place < num_visible)
            pieces.append(passed.text)
            if self._is_over(passed):
                return Passed("".join(pieces), passed.stop)
        return Passed("".join(pieces))

    def _advance(self, token_id: int, *, is_visible: bool = True) -> Passed:
        self.num_tokens += 1
        reader = self._reader
        if reader is not None and reader.is_thinking:
            self.num_thought_tokens += 1
        text = self._detokenizer.push(token_id) if is_visible else ""
        self._length += len(text)
        if reader is not None and text:
            text = self._sort(reader.feed(text))
        # Up to min_tokens the answer may not end, so its text cannot stop it.
        if not self._has_stops or self.num_tokens <= self._min_tokens:
            return Passed(text)
        return self._matcher.feed(text)

    def _is_over(self, passed: Passed) -> bool:
        """A stop string or pattern, or as many calls as are allowed."""
        return passed.stop is not None or (self._reader is not None and self._reader.is_full)

    def _sort(self, pieces: Sequence[Piece]) -> str:
        """Hold thoughts and calls; what is said, in one."""
        said: list[str] = []
        for piece in pieces:
            match piece:
                case Said(text):
                    said.append(text)
                case Thought(text):
                    self._held.thoughts.append(text)
                case CallBegun(name):
                    delta = CallDelta(index=self._num_calls, id=self._call_ids.draw(), name=name)
                    self._held.calls.append(delta)
                    self._num_calls += 1
                case CallArguments(text):
                    delta = CallDelta(index=self._num_calls - 1, arguments=text)
                    self._held.calls.append(delta)
        return "".join(said)

    def _replay(self, prior: Sequence[int]) -> Passed | None:
        """Go where an earlier replica stood: what it held back is held back here, the rest was sent."""
        end: Passed | None = None
        for token_id in prior:
            passed = self._advance(token_id)
            if self._is_over(passed):
                end = passed
                break
        self._held = _Held()
        return end

    def _finish(self, text: str, event: TokenEvent, finish: FinishReason) -> Delta:
        last = self._detokenizer.flush()
        if self._reader is not None:
            last = self._sort([*self._reader.feed(last), *self._reader.flush()])
        if self._has_stops:
            passed = self._matcher.feed(last)
            if passed.stop is not None:
                return self._stop_at(text + passed.text, passed.stop)
            last = passed.text + self._matcher.flush()
        stop_reason = event.stop_token_id if event.stop_token_id in self._stop_token_ids else None
        error = (event.error, event.error_kind)
        return self._release(text + last, finish, stop_reason=stop_reason, error=error)

    def _stop_at(self, text: str, stop: str | None) -> Delta:
        if self._has_stops and stop is None:
            text += self._matcher.flush()
        return self._release(text, FinishReason.STOP, stop_reason=stop)

    def _release(
        self,
        text: str,
        finish: FinishReason | None = None,
        *,
        stop_reason: str | int | None = None,
        error: tuple[str | None, str | None] = (None, None),
    ) -> Delta:
        """Everything held since the last delta, in one."""
        self.is_done = finish is not None
        held, self._held = self._held, _Held()
        return Delta(
            index=self.index,
            text=text,
            thought="".join(held.thoughts),
            calls=join_calls(held.calls),
            token_ids=tuple(held.token_ids),
            logprobs=tuple(held.logprobs),
            text_offsets=tuple(held.offsets),
            finish=finish,
            has_called=finish is not None and self._num_calls > 0,
            stop_reason=stop_reason,
            error=error[0],
            error_kind=error[1],
        )


class _Held:
    """What has come since the last delta."""

    __slots__ = ("calls", "logprobs", "offsets", "thoughts", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.offsets: list[int] = []
        self.thoughts: list[str] = []
        self.calls: list[CallDelta] = []


def _spelling(tokenizer: Tokenizer, options: TextOptions) -> Mapping[int, bytes]:
    """The bytes of tokens as the text shows them; marks that are read are shown to the reader."""
    shown, whole, marks = tokenizer.text_bytes, tokenizer.all_bytes, options.reading.marks
    if not options.skip_special:
        return whole
    if not marks:
        return shown
    return TokenBytes(lambda token_id: (whole if token_id in marks else shown)[token_id])
