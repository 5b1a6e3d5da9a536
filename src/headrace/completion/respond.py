"""Token events → what a client gets: pieces of text, ends and counts, for all choices of a request."""

from msgspec import Struct
from msgspec.structs import replace

from headrace.completion.choice import Choice, Outcome, TextOptions
from headrace.completion.delta import Delta, join
from headrace.completion.prompt_report import report_prompt
from headrace.completion.stop import Stops
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
        stops = Stops(request.params.stop, request.params.stop_regex)
        self.request = request
        wants_prompt = options.tells_prompt or options.echoes
        self._prompt = report_prompt(request, tokenizer) if wants_prompt else None
        """What the first delta of each choice tells; log-probabilities come with events."""
        self._untold = set(range(request.n)) if options.tells_prompt else set()
        offset = len(self._prompt.text) if self._prompt is not None and options.echoes else 0
        self._choices = [
            Choice(index, request, tokenizer, options, stops, offset) for index in range(request.n)
        ]
        self._num_best = options.num_best
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
        if event.prompt_logprobs and self._prompt is not None:
            known = self._prompt.logprobs + event.prompt_logprobs
            self._prompt = replace(self._prompt, logprobs=known)
        if not 0 <= event.index < len(self._choices):
            return Outcome()
        outcome = self._choices[event.index].push(event)
        if event.index in self._untold and (outcome.delta is not None or outcome.token_ids):
            # With the first token, whether or not its text can be shown: whoever continues tells no more.
            self._untold.discard(event.index)
            delta = outcome.delta or Delta(index=event.index)
            outcome = replace(outcome, delta=replace(delta, prompt=self._prompt))
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
        """Each choice as one delta: what a stream's deltas add up to. Needs `collect`.

        Of several of which only the best are wanted, those whose tokens have the largest mean
        log-probability, best first, the lower index among equals.
        """
        if self._deltas is None:
            raise ValueError("the responder was not asked to collect")
        choices = [join(index, deltas) for index, deltas in enumerate(self._deltas)]
        if not self._num_best:
            return choices
        best = sorted(choices, key=_mean_logprob, reverse=True)[: self._num_best]
        return [replace(choice, index=index) for index, choice in enumerate(best)]

    def _keep(self, delta: Delta | None) -> None:
        if delta is not None and self._deltas is not None:
            self._deltas[delta.index].append(delta)


def _mean_logprob(choice: Delta) -> float:
    entries = choice.logprobs
    return sum(entry.logprob for entry in entries) / len(entries) if entries else float("-inf")
