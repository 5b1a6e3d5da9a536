"""What a client has of its answer so far, over all replicas that worked on it."""

from typing import Any

import msgspec
from msgspec import Struct

from headrace.fleet.backends import values as wire


class Usage(Struct, frozen=True):
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
    usage: dict[str, Any] | None = None


_WHOLE = msgspec.json.Decoder(_Whole)


class Progress:
    """Grows with every event that is passed on; the next replica goes on from it."""

    def __init__(self, *, keeps_text: bool = False) -> None:
        """`keeps_text`: it is gone on with by its text, since the first replica did not tell its tokens' ids."""
        self.keeps_text = keeps_text
        self.token_ids: list[int] = []
        """All of its tokens, from replicas that tell them."""
        self.text: list[str] = []
        self.is_plain = True
        """It is nothing but text: no call of a tool, no reasoning."""
        self.seed: int | None = None
        """The resolved seed, of headrace replicas."""
        self.num_tokens = 0
        """As told, or one for each event with text."""
        self.num_events = 0
        self.name: dict[str, Any] | None = None
        """`id` and `created` of the first event: all later ones carry the same."""
        self.has_finished = False
        """The finish reason was passed on."""
        self.is_done = False
        """The end marker was passed on."""
        self.usage: Usage | None = None

    def note_whole(self, body: bytes) -> None:
        """An answer in one piece; one that tells no usage has none."""
        try:
            usage = _WHOLE.decode(body).usage
        except (msgspec.DecodeError, RecursionError):
            return
        if usage is not None:
            self.usage = usage_of(usage)

    def note_text(self, choices: list[dict[str, Any]]) -> None:
        """The choices of one chunk, before it is passed on."""
        for choice in choices:
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            text = delta.get("content", choice.get("text"))
            if isinstance(text, str) and text:
                self.text.append(text)
                self.num_tokens += 1
            if any(delta.get(name) for name in ("tool_calls", "reasoning_content", "reasoning")):
                self.is_plain = False

    def as_wire(self) -> wire.Progress:
        """For the next replica."""
        return wire.Progress(
            text="".join(self.text),
            token_ids=None if self.keeps_text else tuple(self.token_ids),
            num_tokens=self.num_tokens,
            seed=self.seed,
            is_plain=self.is_plain,
        )


def usage_of(usage: dict[str, Any]) -> Usage:
    """OpenAI's usage object, of any of its APIs, or Anthropic's; what is not told is 0."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        cached_tokens=_count(cached or usage.get("cache_read_input_tokens")),
        output_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
