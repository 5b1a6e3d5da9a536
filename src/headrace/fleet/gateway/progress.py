"""What a client has of its answer so far, over all replicas that worked on it."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.fleet.backends import values as wire
from headrace.fleet.gateway.pace import Pace
from headrace.web.streaming import DONE, event

#: No request has more tokens; what tells more is mistaken.
_MAX_TOKENS: Final = 1 << 31


class AnswerUsage(Struct, frozen=True):
    """What an answer cost, as its replica says."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def as_openai(self) -> dict[str, Any]:
        """The usage object of chats and completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class _Whole(Struct):
    id: Any = None  # whatever it is, the rest is read
    usage: dict[str, Any] | None = None


class _Named(_Whole):
    type: Any = None
    message: _Whole | None = None
    response: _Whole | None = None


#: Fields of a piece that a text cannot be gone on with.
_NO_TEXT = frozenset({"tool_calls", "reasoning_content", "reasoning"})
_WHOLE = msgspec.json.Decoder(_Whole)
_NAMED = msgspec.json.Decoder(_Named)


class Progress:
    """Grows with every event that is passed on; the next replica goes on from it."""

    def __init__(self, *, keeps_text: bool = False, pace: Pace | None = None) -> None:
        """`keeps_text`: it is gone on with by its text, since the first replica did not tell its tokens' ids."""
        self.keeps_text = keeps_text
        self.pace = pace
        """Of a stream that somebody times."""
        self.token_ids: list[int] = []
        """All of its tokens, from replicas that tell them."""
        self.text: list[str] = []
        self.is_plain = True
        """It is nothing but text: no call of a tool, no reasoning."""
        self.seed: int | None = None
        """The resolved seed, of headrace replicas."""
        self.num_tokens = 0
        """As told, or one for each event with text."""
        self.name: dict[str, Any] | None = None
        """`id`, and `created` where there is one, of the first event: all later ones carry the same."""
        self.num_bytes = 0
        """Of an answer in one piece."""
        self.num_events = 0
        """Passed on, of APIs that name their events."""
        self.has_finished = False
        """A finish reason was passed on."""
        self.finished: set[int] = set()
        """Choices that have one, by their indices."""
        self.is_done = False
        """The end marker was passed on."""
        self.usage: AnswerUsage | None = None

    def note_whole(self, body: bytes) -> bool:
        """An answer in one piece; one that tells no usage has none. False for what is no JSON."""
        self.num_bytes = len(body)
        try:
            told = _WHOLE.decode(body)
        except (msgspec.ValidationError, RecursionError):
            return True  # of another shape, such as a list
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if told.usage is not None:
            self.usage = usage_of(told.usage)
        if isinstance(told.id, str) and told.id:
            self.name = {"id": told.id}
        return True

    def note_named(self, data: bytes) -> str:
        """An event of Anthropic's or of OpenAI's responses; each tells a part of the usage, or all so far. Its type."""
        try:
            told = _NAMED.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        for holder in (told, told.message, told.response):
            if holder is not None and holder.usage is not None:
                old, new = self.usage or AnswerUsage(), usage_of(holder.usage)
                self.usage = AnswerUsage(
                    max(old.prompt_tokens, new.prompt_tokens),
                    max(old.cached_tokens, new.cached_tokens),
                    max(old.output_tokens, new.output_tokens),
                )
        for holder in (told.response, told.message):
            if self.name is None and holder is not None and isinstance(holder.id, str):
                self.name = {"id": holder.id}
        return told.type if isinstance(told.type, str) else ""

    def note_finished(self, choices: list[dict[str, Any]]) -> None:
        """Those of one chunk that have ended with it."""
        for choice in choices:
            if choice.get("finish_reason"):
                self.has_finished = True
                index = choice.get("index")
                self.finished.add(index if isinstance(index, int) else 0)

    def add_tokens(self, token_ids: list[int]) -> None:
        """Tokens whose text, if there is any yet, is passed on with them."""
        self.token_ids += token_ids
        self.num_tokens += len(token_ids)

    def note_said(self, choices: list[dict[str, Any]], *, has_ids: bool) -> None:
        """The choices of one chunk, before it is passed on. Where the replica did not tell its tokens' ids, each counts as
        one.
        """
        for choice in choices:
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            text = delta.get("content", choice.get("text"))
            has_text = isinstance(text, str) and bool(text)
            if self.keeps_text and isinstance(text, str) and text:
                self.text.append(text)
            has_more = not _NO_TEXT.isdisjoint(delta) and any(delta.get(n) for n in _NO_TEXT)
            if has_more:
                self.is_plain = False
            # Whatever it says, a model made it: the first token of one that thinks is a thought.
            self.num_tokens += not has_ids and (has_text or has_more)

    def ending(self, model: str, is_chat: bool, usage: AnswerUsage | None = None) -> bytes:
        """What a stream lacks whose tokens are all there: its finish reason, its end marker, or nothing. `usage` is what its
        client wants to be told, and was not.
        """
        events = b""
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        head = {"object": kind, "model": model, **(self.name or {})}
        if not self.has_finished:
            text: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
            choice = {"index": 0, **text, "finish_reason": "length"}
            events = event(msgspec.json.encode({**head, "choices": [choice]}))
        if usage is not None and not self.is_done:
            told = {**head, "choices": [], "usage": usage.as_openai()}
            events += event(msgspec.json.encode(told))
        return events if self.is_done else events + DONE

    def as_wire(self) -> wire.ResumePoint:
        """For the next replica."""
        # A peer that told text and no ids: from no ids at all the answer would be made, and told, from its beginning.
        is_untold = bool(self.num_tokens) and not self.token_ids
        return wire.ResumePoint(
            text="".join(self.text),
            token_ids=None if self.keeps_text or is_untold else tuple(self.token_ids),
            num_tokens=self.num_tokens,
            seed=self.seed,
            is_plain=self.is_plain and (self.keeps_text or not is_untold),
        )


def usage_of(usage: dict[str, Any]) -> AnswerUsage:
    """OpenAI's usage object, of any of its APIs, or Anthropic's; what is not told is 0."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    # Anthropic's input tokens are those that were neither read from its cache nor written to it.
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    given = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    return AnswerUsage(
        prompt_tokens=given + read + written,
        cached_tokens=_count(cached) or read,
        output_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def usage_over_all(usage: dict[str, Any], num_before: int) -> dict[str, Any]:
    """OpenAI's usage of an answer that was gone on with by its text: what was there before, `num_before` tokens, was a
    part of its prompt, and was output to the client.
    """
    told = usage_of(usage)
    prompt = max(0, told.prompt_tokens - num_before)
    changed = {
        **usage,
        "prompt_tokens": prompt,
        "completion_tokens": told.output_tokens + num_before,
        "total_tokens": prompt + told.output_tokens + num_before,
    }
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        changed["prompt_tokens_details"] = {
            **details,
            "cached_tokens": min(told.cached_tokens, prompt),
        }
    return changed


def _count(value: object) -> int:
    """0 for what cannot be a number of tokens: budgets are charged with it."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_TOKENS
    return value if is_count and isinstance(value, int) else 0
