"""The only door into the engine: wire request → `core.request.Request`, checked and tokenised.

Everything here is computation: no I/O, no waiting. It may run on any thread.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from msgspec import Struct, structs

from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest, Prompt
from headrace.api.fields import GenerationFields
from headrace.config.server import ServerConfig, ToolFormat
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, PermissionDeniedError
from headrace.core.grammar import Grammar
from headrace.core.model_info import ModelInfo
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.preprocess.answers import Answer, AnswerPlanner, with_limit
from headrace.preprocess.beams import for_search, read_beams
from headrace.preprocess.chat_template import ChatTemplate
from headrace.preprocess.constraint import read_constraint
from headrace.preprocess.dry import with_dry
from headrace.preprocess.fit import PromptFitter
from headrace.preprocess.generation_config import SamplingDefaults
from headrace.preprocess.messages import plain_messages
from headrace.preprocess.params import (
    Bounds,
    bounded,
    check_token_ids,
    draw_random_seed,
    resolve_params,
)
from headrace.preprocess.reading import Reading
from headrace.preprocess.request_bounds import resolve_count, resolve_salt, resolve_timeout
from headrace.preprocess.special_text import free_mark
from headrace.preprocess.tasks import check_makes_text
from headrace.preprocess.templates import ChatTemplates
from headrace.preprocess.token_bounds import with_token_bounds
from headrace.preprocess.tokenizer import Tokenizer
from headrace.preprocess.tools.offer import Mode, Offer, read_offer
from headrace.preprocess.tools.plain_prompt import show_tools
from headrace.preprocess.wanted_logprobs import (
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    larger,
)

#: After whatever any client may ask for.
LAST_PRIORITY = 2**32


class Arrival(Struct, frozen=True, kw_only=True):
    """What the server knows of a request beside its body."""

    request_id: str
    time: float
    """`Clock.monotonic` when it came in."""
    is_trusted: bool = False
    """It came from a peer that proved itself: it may continue an answer and choose a cache salt."""
    tenant: bytes = b""
    """Whose prefix cache it shares: of one length for all tenants, or empty for the one that all share."""
    is_background: bool = False
    """Nobody waits for it: it has the last place in every queue, whatever priority it names."""


class PreparedChat(Struct, frozen=True, kw_only=True):
    """A chat request for the engine, and how its answer is to be read."""

    request: Request
    reading: Reading


class Preparer:
    """Turns requests for one model into what its engine takes. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        info: ModelInfo,
        config: ServerConfig,
        clock: Clock,
        *,
        defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008
        chat_template: str | None = None,
        draw_seed: Callable[[], int] = draw_random_seed,
    ) -> None:
        """`chat_template` is a template's source that replaces the model's own: ConfigError if broken."""
        self.tokenizer = tokenizer
        self.info = info
        self.max_queue_time, self.request_timeout = config.max_queue_time, config.request_timeout
        self._config = config
        self._defaults = defaults
        self._templates = ChatTemplates(tokenizer, chat_template, clock)
        self._answers = AnswerPlanner(tokenizer, config, self._templates.tool_source)
        self._fitter = PromptFitter(tokenizer, info, config)
        self._draw_seed = draw_seed
        self._adapters = {adapter.name: adapter.digest for adapter in info.adapters}
        ends = tokenizer.facts.eos_token_ids
        self._eos_token_ids = tuple(sorted(n for n in ends if 0 <= n < info.vocab_size))
        self._num_ends = len(self._eos_token_ids)

    def with_adapters(self, info: ModelInfo) -> "Preparer":
        """The same for an engine that has other adapters now."""
        made = copy(self)
        made.info = info
        made._adapters = {adapter.name: adapter.digest for adapter in info.adapters}
        return made

    def adapter_of(self, model: str | None) -> str | None:
        """The digest of the adapter that goes by this name; None for the model's own names."""
        return self._adapters.get(model or "")

    @property
    def template_source(self) -> str:
        """The chat template that requests without tools get; empty where there is none."""
        return self._templates.source

    @property
    def formats(self) -> str:
        """For the log: how calls and reasoning are read."""
        answers = self._answers
        return (
            f"tool calls are read as {answers.tool_format.value}, "
            f"reasoning as {answers.reasoning_format.value}"
        )

    def chat(self, request: ChatRequest, arrival: Arrival) -> Request:
        """Raises BadRequestError (PromptTooLongError among them) or PermissionDeniedError."""
        return self.prepare_chat(request, arrival).request

    def prepare_chat(self, request: ChatRequest, arrival: Arrival) -> PreparedChat:
        """As `chat`, with what is to be read out of the answer."""
        check_makes_text(self.info)
        limit = request.max_completion_tokens or request.max_tokens
        offer = read_offer(request)
        ids = self._prompt(request, offer)
        prompt = self._fitter.fit("messages", ids, limit, request.truncate_prompt_tokens)
        answer = self._answers.plan(request, offer, prompt)
        built = self._build(
            request,
            arrival,
            prompt,
            max_tokens=limit,
            logprobs=chat_logprobs(request),
            answer=answer,
        )
        return PreparedChat(request=built, reading=answer.reading)

    def completion(self, request: CompletionRequest, arrival: Arrival) -> tuple[Request, ...]:
        """One `Request` a prompt, in order. The ids of several end in -0, -1, …; errors as for `chat`."""
        check_makes_text(self.info)
        prompts = request.prompts()
        if len(prompts) > 1 and request.prior_output_ids:
            raise BadRequestError(
                "'prior_output_ids' continues one prompt, but there are several.",
                param="prior_output_ids",
            )
        requests = []
        for place, prompt in enumerate(prompts):
            name, request_id = "prompt", arrival.request_id
            if len(prompts) > 1:
                name, request_id = f"prompt[{place}]", f"{request_id}-{place}"
            ids = self._completion_ids(request, prompt, name)
            requests.append(
                self._build(
                    request,
                    structs.replace(arrival, request_id=request_id),
                    self._fitter.fit(name, ids, request.max_tokens, request.truncate_prompt_tokens),
                    max_tokens=request.max_tokens,
                    logprobs=completion_logprobs(request),
                    prompt_logprobs=echoed_logprobs(request),
                    num_sequences=request.best_of,
                )
            )
        return tuple(requests)

    def chat_prompt(self, request: ChatRequest) -> list[int]:
        """The token ids of the rendered conversation, or of its end where it is too long for certain.

        Special tokens in messages are text; only the template's own are special.
        """
        return self._prompt(request, read_offer(request))

    def chat_ids(self, request: ChatRequest) -> list[int]:
        """All token ids of the rendered conversation, however many there are."""
        return self._chat_ids(*self._render(request, read_offer(request)))

    def chat_text(self, request: ChatRequest) -> str:
        """The rendered conversation."""
        text, mark = self._render(request, read_offer(request))
        return text.replace(mark, "") if mark else text

    def _prompt(self, request: ChatRequest, offer: Offer | None) -> list[int]:
        text, mark = self._render(request, offer)
        return self._chat_ids(
            self._fitter.shorten(
                "messages", text, mark or "", truncate=request.truncate_prompt_tokens
            ),
            mark,
        )

    def _chat_ids(self, text: str, mark: str | None) -> list[int]:
        if mark is None:
            return self.with_prefix(self.tokenizer.encode(text, add_special=False))
        return self.with_prefix(self.tokenizer.encode_marked(text, mark, add_special=False))

    def _completion_ids(self, request: CompletionRequest, prompt: Prompt, name: str) -> list[int]:
        """The token ids of a text; given ids are checked and taken as they are."""
        if not isinstance(prompt, str):
            check_token_ids(name, prompt, self.info.vocab_size)
            return prompt
        text = self._fitter.shorten(name, prompt, truncate=request.truncate_prompt_tokens)
        ids = self.tokenizer.encode(text, add_special=False)
        if request.add_special_tokens is False:
            return ids
        return [*self.with_prefix(ids), *self.tokenizer.facts.suffix_ids]

    def _render(self, request: ChatRequest, offer: Offer | None) -> tuple[str, str | None]:
        """The prompt's text, and the mark in users' special tokens where there are any."""
        try:
            return self._render_shallow(request, offer)
        except RecursionError:
            raise BadRequestError(
                "'messages', 'tools' or 'chat_template_kwargs' are nested too deeply.",
                param="messages",
            ) from None

    def _render_shallow(self, request: ChatRequest, offer: Offer | None) -> tuple[str, str | None]:
        template = self._template_for(request, offer)
        extra = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            extra["reasoning_effort"] = request.reasoning_effort
        messages = self._messages(request, offer, template)
        values: list[Any] = [messages, offer.plain if offer is not None else None, extra]
        mark = None
        special = self.tokenizer.special_tokens
        if special.are_in(values):
            mark = free_mark(values)
            if mark is None:
                raise BadRequestError(
                    "'messages' hold every Unicode noncharacter, and special tokens too.",
                    param="messages",
                )
            values = special.disarm(values, mark)
        continues = bool(request.continue_final_message)
        if continues and request.add_generation_prompt:
            raise BadRequestError(
                "'continue_final_message' and 'add_generation_prompt' exclude each other.",
                param="continue_final_message",
            )
        text = template.render(
            values[0],
            tools=values[1],
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=continues,
            extra=values[2],
        )
        return text, mark

    def _template_for(self, request: ChatRequest, offer: Offer | None) -> ChatTemplate:
        if not request.chat_template:
            return self._templates.find(with_tools=offer is not None)
        if not self._config.security.trust_request_chat_template:
            raise BadRequestError(
                "'chat_template' is not taken from requests here; the operator may allow it with "
                "--trust-request-chat-template.",
                param="chat_template",
                code="untrusted_template",
            )
        return self._templates.of_request(request.chat_template)

    def _messages(
        self, request: ChatRequest, offer: Offer | None, template: ChatTemplate
    ) -> list[dict[str, Any]]:
        """The messages as this template can write them."""
        has_calls = any(
            message.tool_calls or message.function_call or message.role in ("tool", "function")
            for message in request.messages
        )
        messages = plain_messages(
            request.messages,
            knows_developer=template.knows_developer,
            text_arguments=has_calls and template.wants_text_arguments,
        )
        kind = self._answers.tool_format
        if template.knows_tools or kind is ToolFormat.NONE or (offer is None and not has_calls):
            return messages
        needs_system = offer is not None and template.takes_system
        return show_tools(messages, offer, kind, takes_system=needs_system)

    def with_prefix(self, ids: list[int]) -> list[int]:
        """See `PromptFitter.with_prefix`."""
        return self._fitter.with_prefix(ids)

    def _build(
        self,
        fields: GenerationFields,
        arrival: Arrival,
        prompt: list[int],
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
        num_sequences: int | None = None,
        answer: Answer = Answer(),  # noqa: B008 - frozen
    ) -> Request:
        self._check_wishes(fields, arrival)
        n = resolve_count(fields, num_sequences, self._config.max_n)
        prior = fields.prior_output_ids or []
        params = resolve_params(
            fields,
            bounds=Bounds(
                vocab_size=self.info.vocab_size,
                default_max_tokens=self._config.default_max_tokens,
                room=self.info.max_context - len(prompt),
            ),
            defaults=self._defaults,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=None if prior else larger(fields.prompt_logprobs, prompt_logprobs),
            draw_seed=self._draw_seed,
        )
        params = self._with_token_wishes(params, fields)
        if answer.thinking is not None:
            params = with_limit(params, answer.thinking)
        grammar = self._grammar(fields, answer)
        if grammar is not None:
            params = bounded(params)
        beams = read_beams(fields)
        if beams is not None:
            params = for_search(fields, params, self._num_ends, has_grammar=bool(grammar))
        self._check_prior(fields, prior, n, params.max_tokens)
        return Request(
            request_id=arrival.request_id,
            prompt=(TokenSegment(prompt),),
            params=params,
            eos_token_ids=self._eos_token_ids,
            n=n,
            wants_progress=bool(fields.return_progress and fields.stream),
            beams=beams,
            adapter=self.adapter_of(fields.model),
            priority=LAST_PRIORITY if arrival.is_background else fields.priority or 0,
            prior_output_ids=prior,
            cache_salt=resolve_salt(
                fields.cache_salt, arrival.tenant, is_trusted=arrival.is_trusted
            ),
            grammar=grammar,
            arrival_time=arrival.time,
            deadline=arrival.time + resolve_timeout(fields.timeout, self._config.request_timeout),
            max_queue_time=self._config.max_queue_time,
        )

    def _grammar(self, fields: GenerationFields, answer: Answer) -> Grammar | None:
        constraint = read_constraint(fields)
        is_forced = answer.offer is not None and answer.offer.mode is Mode.REQUIRED
        if constraint is None or is_forced:
            return answer.grammar
        return self._answers.bound(constraint.grammar, answer)

    def _with_token_wishes(
        self, params: SamplingParams, fields: GenerationFields
    ) -> SamplingParams:
        vocab_size = self.info.vocab_size
        params = with_token_bounds(params, fields, self.tokenizer, vocab_size)
        return with_dry(params, fields, self.tokenizer, vocab_size)

    def _check_wishes(self, fields: GenerationFields, arrival: Arrival) -> None:
        if fields.stream and fields.prompt_logprobs is not None:
            raise BadRequestError(
                "'prompt_logprobs' are not given in streams.", param="prompt_logprobs"
            )
        if fields.prior_output_ids and not arrival.is_trusted:
            raise PermissionDeniedError("'prior_output_ids' may be set by trusted peers only.")

    def _check_prior(
        self, fields: GenerationFields, prior: Sequence[int], n: int, max_tokens: int
    ) -> None:
        if not prior:
            return
        name = "prior_output_ids"
        check_token_ids(name, prior, self.info.vocab_size)
        if n != 1:
            raise BadRequestError(f"'{name}' continues one answer, but n is {n}.", param=name)
        if fields.seed is None:
            raise BadRequestError(f"'{name}' needs the 'seed' that made them.", param=name)
        if len(prior) >= max_tokens:
            raise BadRequestError(
                f"'{name}' holds {len(prior)} tokens already, and at most {max_tokens} may be made.",
                param=name,
            )
