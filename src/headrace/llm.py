"""`LLM.generate()`: the engine in this process, without a server."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from headrace.api.aliases import without_aliases
from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.api.decode import convert
from headrace.api.embeddings import EmbeddingRequest
from headrace.api.unsupported import refuse_unsupported
from headrace.completion.choice import TextOptions
from headrace.completion.delta import Delta
from headrace.completion.options import text_options
from headrace.completion.respond import Responder
from headrace.config.engine import EngineConfig
from headrace.config.load import build as build_config
from headrace.config.security import SecurityConfig
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import BadRequestError, GrammarError, HeadraceError, InternalError
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.kv_blocks import KVBlocks
from headrace.core.request import Request, Segment, num_positions
from headrace.engine.build import build_engine
from headrace.preprocess.load import load_text
from headrace.preprocess.prepare import Arrival
from headrace.preprocess.texts import embedding_requests

Message = Mapping[str, Any]
WireRequest = TypeVar("WireRequest", ChatRequest, CompletionRequest)

#: Seconds that no one waits here: batches may be as long as they are.
_FOR_EVER = 1e9


#: Errors that are the caller's, as the engine names them.
_KINDS: dict[str, type[HeadraceError]] = {
    "GrammarError": GrammarError,
    "BadRequestError": BadRequestError,
}


class Output(Struct, frozen=True, kw_only=True):
    """One of the n answers to a prompt."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    """As many as `token_ids` when they were asked for, else none."""
    finish_reason: FinishReason


class Completion(Struct, frozen=True, kw_only=True):
    """What became of one prompt."""

    prompt_token_ids: list[int]
    outputs: tuple[Output, ...]
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache."""

    @property
    def text(self) -> str:
        """Of the first answer."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first answer."""
        return self.outputs[0].token_ids


class LLM:
    """One model in this process. Not thread-safe. A context manager; `close` gives the memory back."""

    def __init__(
        self, model: str = "smollm2-135m", *, clock: Clock | None = None, **settings: Any
    ) -> None:
        """`model` and `settings` are fields of the engine's configuration, such as `max_num_seqs=8`.

        Raises ConfigError in one sentence for what cannot be served.
        """
        config = build_config(EngineConfig, model=model, **settings)
        self._clock = clock or SystemClock()
        built = build_engine(config, self._clock, _ignore)
        self.info = built.info
        self._engine = built.engine
        text = load_text(built.info.path, source=model, chat_template=config.model.chat_template)
        patient = ServerConfig(
            max_queue_time=_FOR_EVER,
            request_timeout=_FOR_EVER,
            # Whoever calls is whoever runs this process.
            security=SecurityConfig(trust_request_chat_template=True),
        )
        self._preparer = text.preparer(built.info, patient, self._clock)
        self._ids = count()
        self._boxes: dict[str, list[TokenEvent]] = {}  # events that open streams have not read

    def generate(
        self, prompts: str | Sequence[str] | Sequence[list[int]], **params: Any
    ) -> list[Completion]:
        """Continue each prompt (text or token ids); all run in one batch.

        `params` are those of `POST /v1/completions`: max_tokens, temperature, top_p, seed, stop, n, …
        Raises BadRequestError that names the field.
        """
        many: list[str | list[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        requests = [self._completion(prompt, params) for prompt in many]
        return self._run([request for request, _ in requests], [o for _, o in requests])

    def generate_from(self, prompt: Sequence[Segment], **params: Any) -> Completion:
        """Continue a prompt of which some positions are vectors (`core/request.py: embedding_segment`).

        `params` are those of `generate`. Raises BadRequestError, also for vectors of another size than the
        model's.
        """
        segments = tuple(prompt)
        # Whatever else is checked of a prompt is its length.
        stand_in = [0] * sum(map(num_positions, segments))
        request, options = self._completion(stand_in, params)
        return self._run([msgspec.structs.replace(request, prompt=segments)], [options])[0]

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], **params: Any
    ) -> list[Completion]:
        """Answer a conversation, or each of several, through the model's chat template.

        `params` are those of `POST /v1/chat/completions`. Raises BadRequestError that names the field.
        """
        if not messages:
            raise BadRequestError("'messages' is empty.", param="messages")
        many = [messages] if isinstance(messages[0], Mapping) else messages
        requests = [self._chat(conversation, params) for conversation in many]
        return self._run([request for request, _ in requests], [o for _, o in requests])

    def stream(self, prompt: str | list[int], **params: Any) -> Iterator[Delta]:
        """Pieces of the answer to one prompt, as they are made. Leaving the loop cancels the rest."""
        request, options = self._completion(prompt, params)
        responder = Responder(request, self._preparer.tokenizer, options)
        box = self._boxes[request.request_id] = self._engine.add(request)
        try:
            while True:
                while box:
                    delta = self._push(responder, box.pop(0))
                    if delta is not None:
                        yield delta
                if responder.is_done:
                    return
                self._step()
        finally:
            del self._boxes[request.request_id]
            self._engine.cancel(request.request_id)

    def embed(
        self, texts: str | Sequence[str] | Sequence[list[int]], **params: Any
    ) -> list[list[float]]:
        """A vector for each text (or list of token ids); texts run together, each whole.

        `params` are those of `POST /v1/embeddings`: dimensions, normalize, truncate_prompt_tokens, …
        Raises BadRequestError that names the field.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        wire = convert({"input": given, **params}, EmbeddingRequest)
        requests = embedding_requests(self._preparer, wire, self._arrival())
        found: dict[str, TokenEvent] = {}
        try:
            events = [event for request in requests for event in self._engine.add(request)]
            while True:
                found.update({event.request_id: event for event in events if event.finish})
                if all(request.request_id in found for request in requests):
                    break
                events = self._step()
        except BaseException:
            for request in requests:
                self._engine.cancel(request.request_id)
            raise
        return [_vector(found[request.request_id]) for request in requests]

    def export_kv(self, prompt: str | list[int]) -> KVBlocks:
        """Keys and values of what is cached of the prompt's beginning, in full blocks: for `import_kv`."""
        return self._engine.export_blocks(self._completion(prompt, {})[0])

    def import_kv(self, blocks: KVBlocks) -> None:
        """Prompts that begin with these blocks, of an engine with the same model, need not compute them.

        Raises BadRequestError for blocks of another shape, and without `kv_tier_memory`.
        """
        self._engine.import_blocks(blocks)

    def close(self) -> None:
        """End the engine's threads and give its memory back."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _completion(
        self, prompt: str | list[int], params: Mapping[str, Any]
    ) -> tuple[Request, TextOptions]:
        wire = _wire(CompletionRequest, {"prompt": prompt, **params})
        options = text_options(wire, stands_alone=False)
        return self._preparer.completion(wire, self._arrival())[0], options

    def _chat(self, messages: Any, params: Mapping[str, Any]) -> tuple[Request, TextOptions]:
        wire = _wire(ChatRequest, {"messages": list(messages), **params})
        request = self._preparer.chat(wire, self._arrival())
        stands_alone = not (wire.continue_final_message or request.grammar)
        return request, text_options(wire, stands_alone=stands_alone)

    def _arrival(self) -> Arrival:
        # Whoever runs the engine in its own process may continue answers and choose salts.
        return Arrival(
            request_id=f"llm-{next(self._ids)}", time=self._clock.monotonic(), is_trusted=True
        )

    def _run(self, requests: list[Request], options: list[TextOptions]) -> list[Completion]:
        tokenizer = self._preparer.tokenizer
        responders = {
            request.request_id: Responder(request, tokenizer, option, collect=True)
            for request, option in zip(requests, options, strict=True)
        }
        try:
            for request in requests:
                for event in self._engine.add(request):
                    self._push(responders[event.request_id], event)
            while not all(responder.is_done for responder in responders.values()):
                for event in self._step():
                    if event.request_id in responders:
                        self._push(responders[event.request_id], event)
        except BaseException:
            for request in requests:
                self._engine.cancel(request.request_id)
            raise
        return [_completion(responder) for responder in responders.values()]

    def _step(self) -> list[TokenEvent]:
        """Events of one step, but for those of open streams, which find them in their boxes."""
        try:
            events = self._engine.step()
            if not events and self._engine.is_waiting:
                self._clock.sleep(0.001)
            if not events and (wake_at := self._engine.wake_at()) is not None:
                # A batch that is not full; nobody else can come.
                self._clock.sleep(max(0.0, wake_at - self._clock.monotonic()))
        except BaseException as error:
            # What was in flight is lost. Ended properly, the engine is good for the next call.
            reason = f"A step of the engine failed: {type(error).__name__}."
            self._sort(self._engine.fail_all(reason))
            raise
        return self._sort(events)

    def _sort(self, events: list[TokenEvent]) -> list[TokenEvent]:
        others: list[TokenEvent] = []
        for event in events:
            self._boxes.get(event.request_id, others).append(event)
        return others

    def _push(self, responder: Responder, event: TokenEvent) -> Delta | None:
        outcome = responder.push(event)
        if outcome.cancel:
            self._engine.cancel(event.request_id, event.index)
        if outcome.delta is not None and outcome.delta.error is not None:
            kind = _KINDS.get(outcome.delta.error_kind or "", InternalError)
            raise kind(outcome.delta.error)
        return outcome.delta


def _vector(event: TokenEvent) -> list[float]:
    if event.vector is None:
        raise InternalError(event.error or "The engine gave no vector.")
    numbers = array("f")
    numbers.frombytes(event.vector)
    return numbers.tolist()


def _completion(responder: Responder) -> Completion:
    request = responder.request
    prompt = request.prompt_token_ids
    outputs = tuple(
        Output(
            text=choice.text,
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish or FinishReason.ERROR,
        )
        for choice in responder.choices()
    )
    cached = responder.counts.cached
    return Completion(prompt_token_ids=prompt, outputs=outputs, num_cached_tokens=cached)


def _wire(kind: type[WireRequest], values: dict[str, Any]) -> WireRequest:
    """The request as its wire type, every field checked. Raises BadRequestError."""
    known = {field.name for field in msgspec.structs.fields(kind)} - {"stream", "stream_options"}
    for name in values:
        if name not in known:
            raise BadRequestError(f"There is no parameter '{name}'.", param=name)
    wire = without_aliases(convert(values, kind))
    refuse_unsupported(wire)
    return wire


def _ignore(phase: str) -> None:
    """Phases of the start are of no interest here."""
