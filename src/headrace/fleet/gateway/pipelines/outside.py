"""Steps that ask other servers over HTTP: anything, and models behind KServe v2.

KServe v2: https://github.com/kserve/open-inference-protocol, POST /v2/models/NAME/infer.
"""

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.core.errors import BadGatewayError
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of

log = logging.getLogger("headrace.fleet")


class Outside:
    """Connections to the servers of all steps, by address."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pools: dict[str, Pool] = {}

    async def http(self, url: str, body: str | None, headers: Mapping[str, str]) -> dict[str, Any]:
        """`status`, `text` and, where it can be read, `json`; GET without a body. Raises BadGatewayError."""
        data = None if body is None else body.encode("utf-8", "replace")
        status, answer = await self._send(url, data, headers)
        found: dict[str, Any] = {"status": status, "text": answer.decode("utf-8", "replace")}
        try:
            found["json"] = msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found["json"] = None
        return found

    async def kserve(
        self, url: str, model: str, inputs: Any, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """`outputs`, by name. Raises BadGatewayError."""
        body = msgspec.json.encode({"inputs": inputs})
        status, answer = await self._send(
            f"{url.rstrip('/')}/v2/models/{model}/infer", body, headers
        )
        try:
            found = msgspec.json.decode(answer, type=dict[str, Any])
            if status >= 400:
                log.warning("The model %s: %s", model, str(found.get("error"))[:300])
                raise BadGatewayError(f"The model '{model}' answered with status {status}.")
            outputs = {str(each["name"]): each["data"] for each in found["outputs"]}
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
            raise BadGatewayError(f"The server of '{model}' does not speak KServe v2.") from None
        return {"outputs": outputs}

    def close(self) -> None:
        """Let go of all."""
        for pool in self._pools.values():
            pool.close()

    async def _send(
        self, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        parts = urlsplit(url)
        pool = self._pool(f"{parts.scheme}://{parts.netloc}")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = {"content-type": "application/json"}
        sent |= {name.lower(): value for name, value in headers.items()}
        method = "GET" if body is None else "POST"
        try:
            response = await pool.request(method, path, sent, body or b"")
            try:
                return response.status, await response.read_all(self._max_bytes)
            finally:
                pool.release(response)
        except UpstreamError as error:
            # Where that server is, and what exactly it did, is for the operator; a password in its address is for nobody.
            log.warning("%s failed a step: %s", address_of(url).authority, error)
            raise BadGatewayError("The server of this step failed to answer.") from None

    def _pool(self, url: str) -> Pool:
        found = self._pools.get(url)
        if found is None:
            found = self._pools[url] = Pool(
                address_of(url), TimeoutConfig(), max_idle=8, max_buffer=self._max_bytes
            )
        return found
