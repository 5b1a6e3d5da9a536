"""Where a retrieval step looks: a file of our own, or an endpoint."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.fleet.pipelines import VectorStore
from headrace.core.errors import BadGatewayError, ConfigError, UnavailableError
from headrace.fleet.gateway.inner import InnerAnswer
from headrace.fleet.gateway.pipelines.outside import Outside
from headrace.fleet.gateway.pipelines.vectors import VectorFile

log = logging.getLogger("headrace.fleet.pipelines")

Ask = Callable[[str, Mapping[str, Any]], Awaitable[InnerAnswer]]


class Stores:
    """All stores, by name. A file that has no texts yet is looked for again by each request that needs it."""

    def __init__(self, stores: Sequence[VectorStore], outside: Outside) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._stores = {store.name: store for store in stores}
        self._outside = outside
        self._files: dict[str, VectorFile] = {}
        self.waiting: list[str] = []
        """Sentences about files without texts, as it was at first."""
        try:
            for store in stores:
                self._open_first(store)
        except ConfigError:
            self.close()
            raise

    async def nearest(self, name: str, query: str, top: int, ask: Ask) -> list[dict[str, Any]]:
        """Texts with scores, nearest first; `ask` has the query embedded. Raises HeadraceError."""
        store = self._stores[name]
        if store.url is not None:
            body = msgspec.json.encode({"query": query, "top": top}).decode()
            headers = {key: str(value) for key, value in store.headers.items()}
            found = await self._outside.http(store.url, body, headers)
            return _hits(name, found["json"])[:top]
        file = self._file(store)
        vector = await self._embedded(store, query, ask)
        hits = await asyncio.to_thread(file.nearest, vector, top)
        return [hit._asdict() for hit in hits]

    def close(self) -> None:
        """Give files back."""
        for file in self._files.values():
            file.close()

    def _open_first(self, store: VectorStore) -> None:
        if store.path is None:
            return
        try:
            self._files[store.name] = VectorFile(Path(store.path).expanduser())
        except UnavailableError as error:
            self.waiting.append(f"{error} Until then retrieval from '{store.name}' is refused.")

    def _file(self, store: VectorStore) -> VectorFile:
        """Raises UnavailableError."""
        found = self._files.get(store.name)
        if found is None:
            assert store.path is not None
            try:
                found = VectorFile(Path(store.path).expanduser())
            except (UnavailableError, ConfigError) as error:
                log.warning("%s", error)  # where it lies is for the operator
                raise UnavailableError(f"The store '{store.name}' has no texts yet.") from None
            self._files[store.name] = found
        return found

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
