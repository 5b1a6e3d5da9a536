"""A request's prompt as a chain of 64-bit block hashes, made from its body without a tokenizer.

The text is that which a chat template would go over, in its order: tools, system, messages. Two requests that begin
alike have texts that begin alike, whatever the template; a longer conversation begins with the shorter one.
Each hash depends on all blocks before it, on the model and on the tenant's salt, so one number stands for a whole prefix.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.fleet.gateway.prefix.token_chain import TokenPrompt

#: Between messages, and between a message's parts: no text of a prompt has them but by accident.
_RECORD: Final = "\x1e"
_UNIT: Final = "\x1f"
_PLAIN_MESSAGE: Final = frozenset({"role", "content"})
#: A piece that is no text (an image as data) is shown by its digest from this length on.
_LONG: Final = 512


class Prompt(Struct, frozen=True, kw_only=True):
    """What indices are asked about."""

    hashes: tuple[int, ...]
    """One for each full block from the start, at most `max_blocks`."""
    num_chars: int
    """Of the whole text."""
    block_chars: int
    num_tokens: int
    """Of the whole prompt: estimated, or counted where its tokens are known."""
    model: str = ""
    token_ids: TokenPrompt | None = None
    """For replicas that tell what they have cached."""

    def tokens(self, num_blocks: int) -> int:
        """Estimated tokens of the first blocks."""
        chars = num_blocks * self.block_chars
        return min(self.num_tokens, chars * self.num_tokens // max(1, self.num_chars))


def read_prompt(
    body: Mapping[str, Any],
    *,
    model: str,
    salt: str = "",
    num_tokens: int = 0,
    block_chars: int = 256,
    max_blocks: int = 512,
) -> Prompt:
    """The prompt of a request's decoded body, of any endpoint that takes one.

    Whatever has another shape than expected is hashed as JSON: never an error, at worst a prefix that matches nothing.
    """
    pieces: list[str] = []
    num_chars, limit = 0, block_chars * max_blocks
    for piece in prompt_text(body):
        if num_chars < limit:
            pieces.append(piece[: limit - num_chars])
        num_chars += len(piece)
    text = "".join(pieces)
    return Prompt(
        hashes=tuple(_chain(text, root(model, salt), block_chars)),
        num_chars=num_chars,
        block_chars=block_chars,
        num_tokens=num_tokens,
        model=model,
    )


def root(model: str, salt: str) -> bytes:
    """Parent of the first block."""
    name = model.encode("utf-8", "surrogatepass")
    data = len(name).to_bytes(4, "big") + name + salt.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=8).digest()


def _chain(text: str, parent: bytes, size: int) -> Iterator[int]:
    for start in range(0, len(text) - size + 1, size):
        block = text[start : start + size].encode("utf-8", "surrogatepass")
        parent = blake2b(parent + block, digest_size=8).digest()
        yield int.from_bytes(parent, "big")


def prompt_text(body: Mapping[str, Any]) -> Iterator[str]:
    """The prompt's text in pieces, in the order in which templates write it."""
    for name in ("tools", "functions", "system", "instructions"):
        if body.get(name):
            yield _RECORD + name + _UNIT
            yield from _content(body[name])
    for name in ("messages", "input", "prompt"):
        value = body.get(name)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for message in value:
                # Nearly all are plain, and a generator for each costs more than its text.
                if isinstance(message, dict) and message.keys() == _PLAIN_MESSAGE:
                    content = message["content"]
                    if isinstance(content, str):
                        yield f"{_RECORD}{message['role']}{_UNIT}"
                        yield content
                        continue
                yield from _message(message)
        elif isinstance(value, list) and value and isinstance(value[0], str | list):
            # Several prompts: they go to one replica, and the first stands for all.
            yield from _content(value[0])
        elif value is not None:
            yield from _content(value)


def _message(message: object) -> Iterator[str]:
    if not isinstance(message, dict):
        yield from _content(message)
        return
    yield f"{_RECORD}{message.get('role', '')}{_UNIT}"
    yield from _content(message.get("content"))
    for name in message:
        if name not in ("role", "content"):
            yield f"{_UNIT}{name}{_UNIT}"
            yield from _content(message[name])


def _content(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(type(item) is int for item in value):
        yield ",".join(map(str, value)) + ","
    elif isinstance(value, list):
        yield from _parts(value)
    elif value is not None:
        yield _other(value)


def _parts(parts: Iterable[object]) -> Iterator[str]:
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        yield text if isinstance(text, str) else _other(part)
        yield _UNIT


def _other(value: object) -> str:
    """JSON, or its digest where it is long data."""
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return _UNIT
    is_data = len(data) > _LONG and isinstance(value, dict) and b'"data:' in data
    return blake2b(data, digest_size=16).hexdigest() if is_data else data.decode()
