"""Files and batches, as a client sends and reads them."""

import asyncio
import json
import time
from typing import Any

import httpx
from tests.support.patience import PATIENCE

CHAT = "/v1/chat/completions"


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A request; by default of a short chat."""
    if url == CHAT and "messages" not in body:
        body = {"messages": [{"role": "user", "content": custom_id}], "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*lines: Any) -> bytes:
    """An input file."""
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


def parse(content: bytes) -> list[Any]:
    """The lines of an output file."""
    return [json.loads(item) for item in content.splitlines()]


class BatchClient:
    """Over a client of httpx, in process or not."""

    def __init__(self, http: httpx.AsyncClient, key: str | None = None) -> None:
        self.http = http
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}

    async def upload(self, content: bytes, **fields: str) -> httpx.Response:
        data = {"purpose": "batch", **fields}
        files = {"file": ("requests.jsonl", content)}
        return await self.http.post("/v1/files", data=data, files=files, headers=self.headers)

    async def create(self, file_id: str, endpoint: str = CHAT, **fields: Any) -> httpx.Response:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        return await self.http.post("/v1/batches", json=body | fields, headers=self.headers)

    async def begin(self, content: bytes, **fields: Any) -> dict[str, Any]:
        """The batch of a file."""
        file = (await self.upload(content)).json()
        batch = await self.create(file["id"], **fields)
        assert batch.status_code == 200, batch.text
        found: dict[str, Any] = batch.json()
        return found

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, batch_id: str, *states: str) -> dict[str, Any]:
        """The batch, once it is in one of these states."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            batch: dict[str, Any] = await self.get(f"/v1/batches/{batch_id}")
            if batch["status"] in states:
                return batch
            await asyncio.sleep(0.01)
        raise AssertionError(batch)

    async def content(self, file_id: str) -> bytes:
        answer = await self.http.get(f"/v1/files/{file_id}/content", headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.content

    async def output(self, batch: dict[str, Any]) -> list[Any]:
        return parse(await self.content(batch["output_file_id"]))

    async def errors(self, batch: dict[str, Any]) -> list[Any]:
        return parse(await self.content(batch["error_file_id"]))
