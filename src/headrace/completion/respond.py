"""Token events → what a client gets: pieces of text, ends and counts, for all choices of a request."""

from msgspec import Struct

from headrace.completion.choice import Choice, Outcome, TextOptions
from headrace.completion.delta import Delta, join
from headrace.completion.stop import StopStrings
from headrace.core.errors import HeadraceError
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request
from headrace.preprocess.tokenizer import Tokenizer


class TokenCounts(Struct, frozen=True, kw_only=True):
    """What a request cost so far."""

    prompt: int
    completion: int
    """Over all choices, prior output and end-of-sequence tokens included."""
    reasoning: int
    """Those of `completion` that are reasoning, its marks included."""
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
            reasoning=sum(choice.num_thought_tokens for choice in self._choices),
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
