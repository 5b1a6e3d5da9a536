"""Where a retrieval step looks: a file of our own, or an endpoint."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.fleet.pipelines import VectorStore
from headrace.core.errors import BadGatewayError
from headrace.fleet.gateway.inner import InnerAnswer
from headrace.fleet.gateway.pipelines.outside import Outside
from headrace.fleet.gateway.pipelines.vectors import VectorFile

Ask = Callable[[str, Mapping[str, Any]], Awaitable[InnerAnswer]]


class Stores:
    """All stores, by name."""

    def __init__(self, stores: Sequence[VectorStore], outside: Outside) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._stores = {store.name: store for store in stores}
        self._files = {
            store.name: VectorFile(Path(store.path).expanduser())
            for store in stores
            if store.path is not None
        }
        self._outside = outside

    async def nearest(self, name: str, query: str, top: int, ask: Ask) -> list[dict[str, Any]]:
        """Texts with scores, nearest first; `ask` has the query embedded. Raises HeadraceError."""
        store = self._stores[name]
        if store.url is not None:
            body = msgspec.json.encode({"query": query, "top": top}).decode()
            headers = {key: str(value) for key, value in store.headers.items()}
            found = await self._outside.http(store.url, body, headers)
            return _hits(name, found["json"])[:top]
        vector = await self._embedded(store, query, ask)
        hits = await asyncio.to_thread(self._files[name].nearest, vector, top)
        return [hit._asdict() for hit in hits]

    def close(self) -> None:
        """Give files back."""
        for file in self._files.values():
            file.close()

    async def _embedded(self, store: VectorStore, query: str, ask: Ask) -> list[float]:
        answer = await ask("/v1/embeddings", {"model": store.embeddings, "input": query})
        try:
            found = msgspec.json.decode(answer.body)
            return msgspec.convert(found["data"][0]["embedding"], list[float])
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, IndexError):
            raise BadGatewayError(
                f"The query for the store '{store.name}' could not be embedded (status {answer.status})."
            ) from None


def _hits(name: str, found: Any) -> list[dict[str, Any]]:
    try:
        return [
            {"text": str(hit["text"]), "score": float(hit.get("score", 0.0))}
            for hit in found["hits"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadGatewayError(f"The store '{name}' did not answer with hits.") from None
