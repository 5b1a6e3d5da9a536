"""What a chat answer may hold beside text, for one model: its formats, its grammar, how it is read."""

from msgspec import Struct, structs

from headrace.api.chat import ChatRequest
from headrace.config.server import ReasoningFormat, ServerConfig, ToolFormat
from headrace.core.errors import BadRequestError
from headrace.core.grammar import Grammar
from headrace.core.sampling import SamplingParams, ThinkingLimit
from headrace.preprocess.reading import Reading, ReasoningReading, ToolReading
from headrace.preprocess.tokenizer import Tokenizer
from headrace.preprocess.tools.detect import reasoning_format, tool_format
from headrace.preprocess.tools.frames import MARKS
from headrace.preprocess.tools.grammar import bounded_answer, call_grammar
from headrace.preprocess.tools.offer import Mode, Offer

_THINK_MARKS = ("<think>", "</think>")
_HARMONY_MARKS = (
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>",
)  # fmt: skip
#: Tokens at the end of a prompt in which an opening of reasoning can stand.
_TAIL = 16


class Answer(Struct, frozen=True, kw_only=True):
    """What was decided for one request."""

    reading: Reading = Reading()
    offer: Offer | None = None
    grammar: Grammar | None = None
    """Of an answer that must hold calls, or may hold strict ones."""
    thinking: ThinkingLimit | None = None


class AnswerPlanner:
    """The formats of one model. Immutable."""

    def __init__(self, tokenizer: Tokenizer, config: ServerConfig, template: str) -> None:
        """`template` is the source of the chat template that tools are shown with."""
        self._tokenizer = tokenizer
        self.tool_format = tool_format(config.tool_call_parser, template)
        self.reasoning_format = reasoning_format(
            config.reasoning_parser,
            template,
            has_think_token=tokenizer.id_of(_THINK_MARKS[0]) is not None,
        )
        texts = (
            *_THINK_MARKS,
            *_HARMONY_MARKS,
            *(mark for marks in MARKS.values() for mark in marks),
        )
        ids = {text: tokenizer.id_of(text) for text in texts if tokenizer.special_tokens.find(text)}
        self._special = {text: number for text, number in ids.items() if number is not None}

    def plan(self, request: ChatRequest, offer: Offer | None, prompt: list[int]) -> Answer:
        """Raises BadRequestError for a call that cannot be forced, or a budget that cannot be kept."""
        reasoning = self._reasoning(request, prompt)
        tools = None if offer is None else self._tools(offer)
        grammar = None
        if offer is not None and tools is not None:
            grammar = call_grammar(offer, tools.format, reasoning, self._special)
        return Answer(
            reading=Reading(tools=tools, reasoning=reasoning, marks=self._marks(tools, reasoning)),
            offer=offer,
            grammar=grammar,
            thinking=self._limit(request, reasoning),
        )

    def bound(self, grammar: Grammar, answer: Answer) -> Grammar:
        """The grammar of an answer that is bounded where it is neither reasoning nor a call."""
        tools = answer.reading.tools
        calls = None
        if answer.offer is not None and tools is not None:
            calls = (answer.offer, tools.format)
        return bounded_answer(grammar, answer.reading.reasoning, self._special, calls)

    def _tools(self, offer: Offer) -> ToolReading | None:
        is_forced = offer.mode is Mode.REQUIRED
        if self.tool_format is ToolFormat.NONE:
            if is_forced:
                name = "function_call" if offer.is_legacy else "tool_choice"
                raise BadRequestError(
                    f"'{name}': this server reads no calls (tool_call_parser is none).", param=name
                )
            return None
        return ToolReading(
            format=self.tool_format,
            names=offer.callable_names,
            # Reasoning in Harmony's channels is read by what reads calls, which does not know a frame.
            is_forced=is_forced and self.tool_format is not ToolFormat.GPT_OSS,
            max_calls=offer.max_calls,
            is_legacy=offer.is_legacy,
        )

    def _reasoning(self, request: ChatRequest, prompt: list[int]) -> ReasoningReading | None:
        if self.reasoning_format is ReasoningFormat.NONE:
            return None
        is_open = False
        if self.reasoning_format is ReasoningFormat.THINK:
            tail = self._tokenizer.decode(prompt[-_TAIL:], skip_special=False)
            if request.continue_final_message:
                last = request.messages[-1].content
                tail = last if isinstance(last, str) else ""
            opened, closed = (tail.rfind(mark) for mark in _THINK_MARKS)
            # In a prompt that ends with a turn's head, only what stands at its very end is open.
            is_open = opened > closed and (
                bool(request.continue_final_message) or tail.rstrip().endswith(_THINK_MARKS[0])
            )
        return ReasoningReading(
            format=self.reasoning_format,
            is_open=is_open,
            is_shown=request.include_reasoning is not False,
        )

    def _marks(
        self, tools: ToolReading | None, reasoning: ReasoningReading | None
    ) -> frozenset[int]:
        texts: tuple[str, ...] = ()
        if tools is not None:
            texts += MARKS[tools.format]
        is_harmony = tools is not None and tools.format is ToolFormat.GPT_OSS
        if reasoning is not None:
            is_harmony = is_harmony or reasoning.format is ReasoningFormat.GPT_OSS
            texts += _THINK_MARKS
        if is_harmony:
            texts += _HARMONY_MARKS
        return frozenset(self._special[text] for text in texts if text in self._special)

    def _limit(
        self, request: ChatRequest, reasoning: ReasoningReading | None
    ) -> ThinkingLimit | None:
        name, budget = _budget(request)
        if budget is None or reasoning is None:
            return None
        if reasoning.format is ReasoningFormat.GPT_OSS:
            begin = self._ids("<|channel|>", "analysis", "<|message|>")
            end = self._ids("<|end|>")
            forced = self._ids(
                "<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"
            )
        else:
            begin = () if reasoning.is_open else self._ids(_THINK_MARKS[0])
            end = forced = self._ids(_THINK_MARKS[1])
        if begin is None or not end or not forced:
            raise BadRequestError(
                f"'{name}': this model has no token that ends reasoning, so it cannot be bounded.",
                param=name,
            )
        return ThinkingLimit(max_tokens=budget, begin_ids=begin, end_ids=end, forced_ids=forced)

    def _ids(self, *tokens: str) -> tuple[int, ...] | None:
        """One token each, or none at all: spelt otherwise the engine could not see them."""
        ids = [self._tokenizer.id_of(token) for token in tokens]
        found = tuple(number for number in ids if number is not None)
        return found if len(found) == len(ids) else None


def with_limit(params: SamplingParams, limit: ThinkingLimit) -> SamplingParams:
    """The same with reasoning bounded. Raises BadRequestError where its end is forbidden, too."""
    if params.min_tokens and set(params.stop_token_ids) & set(limit.forced_ids):
        raise BadRequestError(
            "'stop_token_ids' holds a token that ends reasoning: 'min_tokens' forbids it, and the "
            "thinking budget forces it.",
            param="stop_token_ids",
        )
    return structs.replace(params, thinking=limit)


def _budget(request: ChatRequest) -> tuple[str, int | None]:
    """The field and its value; the first that is given counts, -1 is no bound."""
    for name in ("max_thinking_tokens", "thinking_budget", "thinking_token_budget"):
        value: int | None = getattr(request, name)
        if value is not None:
            return name, None if value < 0 else value
    return "", None
