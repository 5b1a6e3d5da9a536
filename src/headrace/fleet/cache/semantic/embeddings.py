"""Vectors of texts, asked of an endpoint of OpenAI's shape."""

import asyncio
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from headrace.config.fleet.cache import SemanticConfig
from headrace.config.fleet.gateway import TimeoutConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.fleet.backends.openai import base_path
from headrace.fleet.cache.fuse import Fuse
from headrace.fleet.cache.semantic.index import Vector, vector_of
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of

#: An answer with one vector is far smaller.
_MAX_BYTES: Final = 1024 * 1024
#: Components of a vector; thousands of vectors are kept.
MAX_COMPONENTS: Final = 8192
_MAX_IDLE: Final = 8
#: What says that this text is at fault, and not the endpoint.
_THE_TEXTS: Final = (400, 413, 422)


class EmbeddingError(HeadraceError):
    """No vector: for the request that is a miss."""


class _UselessError(EmbeddingError):
    """So it will be for other texts too."""


class Embedder(Protocol):
    """Makes vectors."""

    async def vector(self, text: str) -> Vector:
        """Raises EmbeddingError."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class _Item(Struct):
    embedding: list[float]


class _Answer(Struct):
    data: list[_Item]


_DECODER: Final = msgspec.json.Decoder(_Answer)


class HttpEmbedder:
    """`POST /v1/embeddings` over kept connections, with a deadline; left alone for a while after failures in a row."""

    def __init__(self, config: SemanticConfig, clock: Clock) -> None:
        """Raises ConfigError where no usable address is set."""
        url = config.url or ""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                "cache.semantic.url must be the http:// or https:// address of embeddings."
            )
        self._path = base_path(url) + "/v1/embeddings"
        self._model = config.model
        self._timeout = config.timeout
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if config.api_key:
            self._headers["authorization"] = f"Bearer {config.api_key!s}"
        limits = TimeoutConfig(connect=config.timeout, first_token=config.timeout)
        self._pool = Pool(address_of(url), limits, max_idle=_MAX_IDLE, max_buffer=_MAX_BYTES)
        self._fuse = Fuse(clock)

    async def vector(self, text: str) -> Vector:
        if self._fuse.is_blown:
            raise EmbeddingError("The endpoint of embeddings is left alone after failures.")
        try:
            async with asyncio.timeout(self._timeout):
                found = await self._ask(text)
        except (UpstreamError, TimeoutError) as error:
            self._fuse.failed()
            raise EmbeddingError(f"The endpoint of embeddings did not answer: {error}.") from None
        except _UselessError:
            self._fuse.failed()
            raise
        self._fuse.held()
        return found

    def close(self) -> None:
        self._pool.close()

    async def _ask(self, text: str) -> Vector:
        body = msgspec.json.encode(
            {"model": self._model, "input": text, "encoding_format": "float"}
        )
        response = await self._pool.request("POST", self._path, self._headers, body)
        try:
            answer = await response.read_all(_MAX_BYTES)
        finally:
            self._pool.release(response)
        if response.status != 200:
            kind = EmbeddingError if response.status in _THE_TEXTS else _UselessError
            raise kind(f"The endpoint of embeddings answered {response.status}.")
        try:
            data = _DECODER.decode(answer).data
        except (msgspec.DecodeError, UnicodeDecodeError):
            data = []
        vector = None
        if len(data) == 1 and len(data[0].embedding) <= MAX_COMPONENTS:
            vector = vector_of(data[0].embedding)
        if vector is None:
            raise _UselessError("The endpoint of embeddings answered without a vector.")
        return vector
