import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.cache import CacheConfig, SemanticConfig, SemanticMode
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.fleet.cache.build import open_cache
from headrace.fleet.cache.semantic.embeddings import MAX_COMPONENTS, EmbeddingError, HttpEmbedder
from headrace.observe.metrics import Metrics

GOOD = json.dumps(
    {"object": "list", "data": [{"index": 0, "embedding": [3.0, 4]}], "model": "m"}
).encode()


class Endpoint:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.body = 200, GOOD
        self.is_silent = False
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *lines = head.decode().strip().split("\r\n")
                headers = dict(part.split(": ", 1) for part in lines)
                body = await reader.readexactly(int(headers["content-length"]))
                self.requests.append((line, headers, body))
                if self.is_silent:
                    await asyncio.sleep(60)
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (self.status, len(self.body))
                    + self.body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


def embedder(endpoint: Endpoint, **fields: object) -> HttpEmbedder:
    config = SemanticConfig(
        url=endpoint.url + "/v1", model="minilm", api_key=Secret("k"), timeout=5.0
    )
    return HttpEmbedder(replace(config, **fields), FakeClock())


async def test_a_vector_is_asked_for_and_made_unit(endpoint: Endpoint) -> None:
    asked = embedder(endpoint)
    for _ in range(2):
        vector = await asked.vector("Hi")
        assert list(vector.values) == pytest.approx([0.6, 0.8])
    line, headers, body = endpoint.requests[0]
    assert line == "POST /v1/embeddings HTTP/1.1"
    assert headers["authorization"] == "Bearer k"
    assert json.loads(body) == {"model": "minilm", "input": "Hi", "encoding_format": "float"}
    asked.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"data":[]}',
        b'{"data":[{"embedding":"AAAA"}]}',
        b'{"data":[{"embedding":[0]}]}',
    ],
)
async def test_answers_without_a_vector(endpoint: Endpoint, body: bytes) -> None:
    endpoint.body = body
    asked = embedder(endpoint)
    with pytest.raises(EmbeddingError):
        await asked.vector("Hi")
    asked.close()


async def test_an_error_status(endpoint: Endpoint) -> None:
    endpoint.status = 503
    asked = embedder(endpoint)
    with pytest.raises(EmbeddingError, match="503"):
        await asked.vector("Hi")
    asked.close()


async def test_a_silent_one_is_left_alone(endpoint: Endpoint) -> None:
    endpoint.is_silent = True
    asked = embedder(endpoint, timeout=0.4)
    for _ in range(6):
        with pytest.raises(EmbeddingError):
            await asked.vector("Hi")
    assert len(endpoint.requests) == 3
    asked.close()


async def test_a_configuration_makes_it_all(endpoint: Endpoint) -> None:
    semantic = SemanticConfig(mode=SemanticMode.SHADOW, url=endpoint.url)
    cache = open_cache(CacheConfig(enabled=True, semantic=semantic), FakeClock(), Metrics())
    await cache.close()
    with pytest.raises(ConfigError, match=r"semantic\.url"):
        open_cache(
            CacheConfig(enabled=True, semantic=SemanticConfig(mode=SemanticMode.ON)),
            FakeClock(),
            Metrics(),
        )


@pytest.mark.parametrize(
    ("status", "asked_for"), [(500, 3), (401, 3), (404, 3), (400, 6), (413, 6)]
)
async def test_one_that_is_wrong_for_all_texts_is_left_alone(
    endpoint: Endpoint, status: int, asked_for: int
) -> None:
    endpoint.status = status
    asked = embedder(endpoint)
    for _ in range(6):
        with pytest.raises(EmbeddingError):
            await asked.vector("Hi")
    assert len(endpoint.requests) == asked_for
    asked.close()


async def test_a_vector_without_end_is_none(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps({"data": [{"embedding": [1.0] * (MAX_COMPONENTS + 1)}]}).encode()
    asked = embedder(endpoint)
    with pytest.raises(EmbeddingError):
        await asked.vector("Hi")
    asked.close()


async def test_a_configuration_passes_the_names_of_models_on() -> None:
    semantic = SemanticConfig(mode=SemanticMode.SHADOW, url="http://127.0.0.1:1")
    config = CacheConfig(enabled=True, semantic=semantic)
    cache = open_cache(config, FakeClock(), Metrics(), lambda name: "other")
    assert cache._semantic is not None
    assert cache._semantic._label("x") == "other"
    await cache.close()
