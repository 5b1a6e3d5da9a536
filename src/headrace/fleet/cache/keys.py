"""When two requests are the same, and whether their answer would be: the key of a cached answer.

The key hashes, each with its length before it: the namespace, the tenant, the path, the model, its versions, and the body
without the fields that change nothing of the answer. Fields of the body are compared as values: order and spaces do not count, nor
does null against absent or 0 against 0.0 at the top level. Everything that is not known to be harmless counts.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

#: Paths whose answer can be told whole and as a stream.
TOLD: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
#: Paths that compute without chance, and never stream.
COMPUTED: Final = frozenset(
    {"/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/tokenize"}
)
#: Fields that say how, to whom or how soon, and nothing about the answer.
_HARMLESS: Final = frozenset({
    "stream", "stream_options", "model", "user", "metadata", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "store", "service_tier", "priority", "request_id", "rid", "cache_prompt", "id_slot",
})  # fmt: skip
#: Tools that the client calls itself: their results stand in later requests. Any other is called by the server.
_CLIENTS_TOOLS: Final = frozenset({"function", "custom"})
_SIZE: Final = 32


class Question(Struct, frozen=True, kw_only=True):
    """A request as the cache sees it."""

    key: bytes
    """32 bytes; the same for a stream and a whole answer."""
    path: str
    tenant: str
    model: str
    body: Mapping[str, Any]
    """Decoded, as it came."""
    version: str = ""
    """Of the model, as it is deployed now."""
    is_stream: bool = False
    with_usage: bool = False
    """The stream is to end with a chunk of usage."""
    is_deterministic: bool = False

    @property
    def flight_key(self) -> bytes:
        """The same for requests whose answers are the same bytes."""
        options = self.body.get("stream_options") if self.is_stream else None
        told = msgspec.json.encode(options, order="deterministic")
        return digest(self.key, bytes((self.is_stream, self.with_usage)), told)


def question(
    *,
    path: str,
    body: Mapping[str, Any],
    tenant: str,
    model: str,
    version: str = "",
    namespace: str = "",
) -> Question | None:
    """The question that a request is; None where its path is not cached.

    `model` is the one that was resolved; the body's own is not looked at.
    """
    if path not in TOLD and path not in COMPUTED:
        return None
    options = body.get("stream_options")
    is_stream = body.get("stream") is True
    return Question(
        key=_key((namespace, tenant, path, model, version), normal(body)),
        path=path,
        tenant=tenant,
        model=model,
        version=version,
        body=body,
        is_stream=is_stream,
        with_usage=is_stream and isinstance(options, dict) and bool(options.get("include_usage")),
        is_deterministic=path in COMPUTED or _draws_nothing(body),
    )


def digest(*parts: bytes) -> bytes:
    """32 bytes of the parts; where one ends and the next begins counts."""
    made = hashlib.blake2b(digest_size=_SIZE)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


def _key(parts: tuple[str, ...], body: Mapping[str, Any]) -> bytes:
    words = (part.encode("utf-8", "surrogatepass") for part in parts)
    return digest(*words, msgspec.json.encode(body, order="deterministic"))


def normal(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that count, in one way of writing them."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in body.items()
        if name not in _HARMLESS and value is not None
    }


def _looks_outside(body: Mapping[str, Any]) -> bool:
    """The server may search, or run something, for the answer: tomorrow it finds something else."""
    tools = body.get("tools")
    return body.get("web_search_options") is not None or (
        isinstance(tools, list)
        and any(
            isinstance(tool, dict) and str(tool.get("type", "function")) not in _CLIENTS_TOOLS
            for tool in tools
        )
    )


def _draws_nothing(body: Mapping[str, Any]) -> bool:
    if _looks_outside(body):
        return False
    # 0 must be said: an absent temperature is 1, or what the model's publisher recommends.
    seed, temperature, top_k = (body.get(name) for name in ("seed", "temperature", "top_k"))
    if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
        return True
    if (
        isinstance(temperature, int | float)
        and not isinstance(temperature, bool)
        and temperature == 0
    ):
        return True
    return top_k == 1 and not isinstance(top_k, bool)
