"""Token events → what a client gets: pieces of text, ends and counts.

Every choice is a small state machine: any number of pieces, then exactly one that carries a finish, on
every path; what comes later is dropped. A choice's text, token ids, log-probabilities and usage all end
at the token that completed a stop string. Usage counts token ids and nothing else.
"""

from collections.abc import Sequence

from msgspec import Struct

from headrace.completion.detokenizer import Detokenizer
from headrace.completion.stop import Passed, StopMatcher, StopStrings
from headrace.core.errors import HeadraceError
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request
from headrace.preprocess.tokenizer import Tokenizer


class TextOptions(Struct, frozen=True, kw_only=True):
    """How token ids become text."""

    include_stop: bool = False
    """The stop string that ended a choice is part of its text."""
    skip_special: bool = True
    """Special tokens are left out of the text."""
    strips_space: bool = False
    """Drop one space at the start: for answers that stand alone, where the tokenizer adds one."""


class Delta(Struct, frozen=True, kw_only=True):
    """What a choice gained: never a broken character, never part of a stop string."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """As many as `token_ids` when the request asked for them, else none."""
    text_offsets: tuple[int, ...] = ()
    """With `logprobs`: characters of the choice's text before each token."""
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or the requested stop token that ended it; None for the model's own end."""
    error: str | None = None
    error_kind: str | None = None
    """Name of a class in `core.errors`, with `error`."""


class Outcome(Struct, frozen=True):
    """What one event led to."""

    delta: Delta | None = None
    """None while there is nothing to show (half a character, the start of a stop string)."""
    cancel: bool = False
    """The engine does not know that this sequence has ended: cancel (request id, index) now."""
    token_ids: tuple[int, ...] = ()
    """What the choice gained by this event alone, shown or held back."""


class TokenCounts(Struct, frozen=True, kw_only=True):
    """What a request cost so far."""

    prompt: int
    completion: int
    """Over all choices, prior output and end-of-sequence tokens included."""
    cached: int
    """Prompt tokens that came from the prefix cache."""


class Responder:
    """All choices of one request. Not thread-safe."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        options: TextOptions = TextOptions(),  # noqa: B008
        *,
        collect: bool = False,
    ) -> None:
        """With `collect` the deltas are kept, for `choices`."""
        stops = StopStrings(request.params.stop)
        self.request = request
        self._choices = [
            Choice(index, request, tokenizer, options, stops) for index in range(request.n)
        ]
        self._deltas: list[list[Delta]] | None = [[] for _ in self._choices] if collect else None
        self._cached = 0

    @property
    def is_done(self) -> bool:
        """Every choice has had its end."""
        return all(choice.is_done for choice in self._choices)

    @property
    def counts(self) -> TokenCounts:
        return TokenCounts(
            prompt=self.request.num_prompt_tokens,
            completion=sum(choice.num_tokens for choice in self._choices),
            cached=self._cached,
        )

    def push(self, event: TokenEvent) -> Outcome:
        """Take one event of this request in. Events after a choice's end are dropped."""
        self._cached = max(self._cached, event.num_cached_tokens)
        if not 0 <= event.index < len(self._choices):
            return Outcome()
        outcome = self._choices[event.index].push(event)
        self._keep(outcome.delta)
        return outcome

    def fail(self, error: HeadraceError) -> list[Delta]:
        """End every choice that still runs: the engine died, or the client's time is up."""
        deltas = []
        for choice in self._choices:
            event = TokenEvent(
                self.request.request_id,
                choice.index,
                finish=FinishReason.ERROR,
                error=str(error),
                error_kind=type(error).__name__,
            )
            delta = choice.push(event).delta
            if delta is not None:
                self._keep(delta)
                deltas.append(delta)
        return deltas

    def choices(self) -> list[Delta]:
        """Each choice as one delta: what a stream's deltas add up to. Needs `collect`."""
        if self._deltas is None:
            raise ValueError("the responder was not asked to collect")
        return [join(index, deltas) for index, deltas in enumerate(self._deltas)]

    def _keep(self, delta: Delta | None) -> None:
        if delta is not None and self._deltas is not None:
            self._deltas[delta.index].append(delta)


class Choice:
    """One sequence of a request, from its first token to its end."""

    def __init__(
        self,
        index: int,
        request: Request,
        tokenizer: Tokenizer,
        options: TextOptions,
        stops: StopStrings,
    ) -> None:
        table = tokenizer.text_bytes if options.skip_special else tokenizer.all_bytes
        strips = options.strips_space and tokenizer.facts.strips_space
        self.index = index
        self.is_done = False
        self.num_tokens = 0
        self._detokenizer = Detokenizer(table, strips_space=strips)
        self._matcher = StopMatcher(stops, include_stop=options.include_stop)
        self._has_stops = bool(stops.strings)
        self._min_tokens = request.params.min_tokens
        self._wants_logprobs = request.params.logprobs is not None
        self._stop_token_ids = frozenset(request.params.stop_token_ids)
        self._length = 0
        self._held_ids: list[int] = []
        self._held_logprobs: list[TokenLogprobs] = []
        self._held_offsets: list[int] = []
        self._prior_stop = self._replay(request.prior_output_ids)

    def push(self, event: TokenEvent) -> Outcome:
        """See `Responder.push`."""
        if self.is_done:
            return Outcome()
        if self._prior_stop is not None:
            return Outcome(self._stop_at("", self._prior_stop), cancel=event.finish is None)
        num_visible = len(event.token_ids)
        if event.stop_token_id is not None and num_visible:
            num_visible -= 1
        num_held = len(self._held_ids)
        passed = self._take(event, num_visible)
        gained = tuple(self._held_ids[num_held:])
        delta = self._show(passed, event)
        has_ended = delta is not None and delta.finish is not None
        return Outcome(delta, cancel=has_ended and event.finish is None, token_ids=gained)

    def _show(self, passed: Passed, event: TokenEvent) -> Delta | None:
        if passed.stop is not None:
            return self._stop_at(passed.text, passed.stop)
        if event.finish is not None:
            return self._finish(passed.text, event, event.finish)
        return self._release(passed.text) if passed.text else None

    def _take(self, event: TokenEvent, num_visible: int) -> Passed:
        """Count and hold the event's tokens up to one that completes a stop string."""
        if not self._has_stops and not self._wants_logprobs:
            self.num_tokens += len(event.token_ids)
            self._held_ids += event.token_ids
            return Passed(self._detokenizer.push_all(event.token_ids[:num_visible]))
        pieces: list[str] = []
        for place, token_id in enumerate(event.token_ids):
            self._held_ids.append(token_id)
            if self._wants_logprobs and place < len(event.logprobs):
                self._held_logprobs.append(event.logprobs[place])
                self._held_offsets.append(self._length)
            passed = self._advance(token_id, is_visible=place < num_visible)
            pieces.append(passed.text)
            if passed.stop is not None:
                return Passed("".join(pieces), passed.stop)
        return Passed("".join(pieces))

    def _advance(self, token_id: int, *, is_visible: bool = True) -> Passed:
        self.num_tokens += 1
        text = self._detokenizer.push(token_id) if is_visible else ""
        self._length += len(text)
        # Up to min_tokens the answer may not end, so its text cannot stop it.
        if not self._has_stops or self.num_tokens <= self._min_tokens:
            return Passed(text)
        return self._matcher.feed(text)

    def _replay(self, prior: Sequence[int]) -> str | None:
        """Go where an earlier replica stood: what it held back is held back here, the rest was sent."""
        for token_id in prior:
            passed = self._advance(token_id)
            if passed.stop is not None:
                return passed.stop
        return None

    def _finish(self, text: str, event: TokenEvent, finish: FinishReason) -> Delta:
        last = self._detokenizer.flush()
        if self._has_stops:
            passed = self._matcher.feed(last)
            if passed.stop is not None:
                return self._stop_at(text + passed.text, passed.stop)
            last = passed.text + self._matcher.flush()
        stop_reason = event.stop_token_id if event.stop_token_id in self._stop_token_ids else None
        error = (event.error, event.error_kind)
        return self._release(text + last, finish, stop_reason=stop_reason, error=error)

    def _stop_at(self, text: str, stop: str) -> Delta:
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
        delta = Delta(
            index=self.index,
            text=text,
            token_ids=tuple(self._held_ids),
            logprobs=tuple(self._held_logprobs),
            text_offsets=tuple(self._held_offsets),
            finish=finish,
            stop_reason=stop_reason,
            error=error[0],
            error_kind=error[1],
        )
        self._held_ids, self._held_logprobs, self._held_offsets = [], [], []
        return delta


def join(index: int, deltas: Sequence[Delta]) -> Delta:
    """One delta that says what all of them say."""
    last = deltas[-1] if deltas else Delta(index=index)
    return Delta(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(number for delta in deltas for number in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        text_offsets=tuple(offset for delta in deltas for offset in delta.text_offsets),
        finish=last.finish,
        stop_reason=last.stop_reason,
        error=last.error,
        error_kind=last.error_kind,
    )
