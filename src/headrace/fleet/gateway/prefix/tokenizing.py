"""Token ids of prompts, asked of a replica: its tokenizer and chat template are right by definition, and the gateway needs
no copy of either. Answers are kept, within a bound of bytes; one that is slow or fails is done without.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from headrace.core.clock import Clock
from headrace.fleet.gateway.prefix.token_chain import TokenIds, ids

Ask = Callable[[str, bytes], Awaitable[bytes | None]]
"""POST a body to /tokenize of the replica with this id; the answer's body if it is 200, else None."""

#: Fields of a chat that its tokens depend on.
_CHAT_FIELDS: Final = (
    "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs",
    "add_special_tokens", "reasoning_effort", "tool_choice",
)  # fmt: skip
#: Failures in a row after which nothing is asked for a while.
_MAX_FAILURES: Final = 3
_PAUSE: Final = 10.0
#: What an entry costs beside its tokens.
_OVERHEAD: Final = 200


class Tokenizing:
    """Asks, and remembers. Not for several threads."""

    def __init__(
        self, ask: Ask, clock: Clock, *, patience: float = 0.25, max_bytes: int = 32 * 1024 * 1024
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._patience = patience
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._failures = 0
        self._paused_until = 0.0
        self.num_bytes = 0

    async def token_ids(
        self, body: Mapping[str, Any], model: str, replica_id: str
    ) -> TokenIds | None:
        """Of a decoded request's prompt, as that replica would compute it; None where they cannot be had in time."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
            return _checked(prompt)
        request = _request(body, model)
        if request is None:
            return None
        key = blake2b(request, digest_size=16).digest()
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        found = await self._asked(replica_id, request)
        if found is not None:
            self._keep(key, found)
        return found

    async def _asked(self, replica_id: str, request: bytes) -> TokenIds | None:
        if self._clock.monotonic() < self._paused_until:
            return None
        answer = None
        try:
            async with asyncio.timeout(self._patience):
                answer = await self._ask(replica_id, request)
        except TimeoutError:
            pass
        found = None if answer is None else _read(answer)
        self._failures = 0 if found is not None else self._failures + 1
        if self._failures >= _MAX_FAILURES:
            self._failures = 0
            self._paused_until = self._clock.monotonic() + _PAUSE
        return found

    def _keep(self, key: bytes, found: TokenIds) -> None:
        size = len(found) * found.itemsize + _OVERHEAD
        if key in self._known or size > self._max_bytes:
            return
        self._known[key] = found
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, dropped = self._known.popitem(last=False)
            self.num_bytes -= len(dropped) * dropped.itemsize + _OVERHEAD


def _request(body: Mapping[str, Any], model: str) -> bytes | None:
    """The body of /tokenize; None for a prompt that it does not take."""
    prompt = body.get("prompt")
    if isinstance(body.get("messages"), list):
        wanted = {name: body[name] for name in _CHAT_FIELDS if name in body}
    elif isinstance(prompt, str):
        wanted = {"prompt": prompt}
        if "add_special_tokens" in body:
            wanted["add_special_tokens"] = body["add_special_tokens"]
    else:
        return None
    return msgspec.json.encode({"model": model, **wanted})


def _read(answer: bytes) -> TokenIds | None:
    """None for what is no list of tokens; a prompt that has none was not understood."""
    try:
        tokens = msgspec.json.decode(answer)["tokens"]
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        return None
    return _checked(tokens) or None


def _checked(tokens: Any) -> TokenIds | None:
    try:
        return ids(tokens)
    except (OverflowError, TypeError):
        return None
