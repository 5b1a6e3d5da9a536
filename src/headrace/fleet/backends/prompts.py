"""A completion request, read for servers that take a prompt and give a text; and stop strings that we look for."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from headrace.core.errors import BadRequestError
from headrace.fleet.backends import reading
from headrace.fleet.backends.chats import read_body, read_stop, refuse_others, wants_usage
from headrace.fleet.backends.values import COMPLETIONS, Incoming


class PromptRequest(Struct, frozen=True, kw_only=True):
    """One prompt, as text."""

    model: str
    prompt: str
    max_tokens: int
    stop: tuple[str, ...]
    with_usage: bool
    body: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A number of the body. Raises BadRequestError for what is none."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRequestError(f"'{name}': expected a number.", param=name)
        return value


def read_prompt(call: Incoming, who: str, takes: Iterable[str]) -> PromptRequest:
    """Read a completion. Raises BadRequestError, also for chats: these servers have no chat template."""
    if call.path != COMPLETIONS:
        raise BadRequestError(
            f"A server of the dialect {who} takes prompts only: use /v1/completions, not {call.path}."
        )
    body = read_body(call)
    refuse_others(body, who, {"prompt", "max_tokens", "temperature", "top_p", "stop", *takes})
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequestError(
            f"'prompt': a server of the dialect {who} takes one text.", param="prompt"
        )
    max_tokens = body.get("max_tokens")
    if max_tokens is None:
        max_tokens = 16  # OpenAI's default
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise BadRequestError("'max_tokens': expected a number of at least 1.", param="max_tokens")
    return PromptRequest(
        model=reading.text(body.get("model")),
        prompt=prompt,
        max_tokens=max_tokens,
        stop=read_stop(body),
        with_usage=wants_usage(body),
        body=body,
    )


class StopFinder:
    """Cuts a growing text before the first stop string, and holds back what may become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def feed(self, piece: str) -> str:
        """What is certain of the text so far."""
        if self.has_stopped:
            return ""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.has_stopped, self._held = True, ""
            return text[: min(found)]
        longest = max(map(len, self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                self._held = tail
                return text[:-size]
        self._held = ""
        return text

    def rest(self) -> str:
        """The text has ended: what was held back was none."""
        held, self._held = self._held, ""
        return held
