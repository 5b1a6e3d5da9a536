"""Calls of a Kubernetes API server: JSON over the gateway's own connections, as the API conventions have it.

https://kubernetes.io/docs/reference/using-api/api-concepts: lists in pieces, 409 for a change of something that has
changed, 410 for a list that has grown old, 401 for a token that has.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from headrace.config.fleet.drivers import KubernetesConfig
from headrace.config.fleet.gateway import TimeoutConfig
from headrace.core.errors import DriverError
from headrace.fleet.drivers.kubernetes.credentials import Credentials, tls_of
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of

#: Objects that are asked for at once, and in all; a list that is longer is refused.
PIECE: Final = 500
MAX_OBJECTS: Final = 20_000
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_MAX_BUFFER: Final = 256 * 1024
#: Lists that grew old while they were read: so often it is begun again.
_LIST_TRIES: Final = 3

Object = Mapping[str, Any]


class ApiError(DriverError):
    """The API server refused; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One API server. Every call ends within `timeout`, or raises DriverError."""

    def __init__(self, config: KubernetesConfig, credentials: Credentials) -> None:
        self._config = config
        self._credentials = credentials
        self._pool: Pool | None = None
        self._authority: str | None = None

    async def list(self, path: str, selector: str) -> Sequence[Object]:
        """All objects with these labels, of one moment. Raises DriverError, never a part of them."""
        for _ in range(_LIST_TRIES):
            try:
                return await self._list(path, selector)
            except ApiError as error:
                if error.status != 410:
                    raise
        raise DriverError(f"{path} changes faster than it can be read.")

    async def call(
        self, method: str, path: str, body: Object | None = None, *, kind: str = "application/json"
    ) -> Object:
        """What it answers. Raises ApiError if it refuses."""
        answer = await self.text(method, path, body, kind=kind)
        try:
            found = msgspec.json.decode(answer)
        except (msgspec.DecodeError, RecursionError):
            raise DriverError("The API server's answer is not JSON.") from None
        if not isinstance(found, dict):
            raise DriverError("The API server's answer is no object.")
        return found

    async def text(
        self, method: str, path: str, body: Object | None = None, *, kind: str = "application/json"
    ) -> bytes:
        """The same, as it came."""
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(self._config.timeout):
                status, answer = await self._send(method, path, data, kind)
        except TimeoutError:
            raise DriverError(
                f"The API server has not answered for {self._config.timeout:g} s."
            ) from None
        except UpstreamError as error:
            raise DriverError(f"The API server cannot be reached: {error}.") from None
        if status >= 400:
            raise ApiError(status, _refusal(method, path, status, answer))
        return answer

    def close(self) -> None:
        """Close connections that are idle."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def _list(self, path: str, selector: str) -> Sequence[Object]:
        found = []
        following = ""
        while True:
            query = {"labelSelector": selector, "limit": str(PIECE)}
            if following:
                query["continue"] = following
            piece = await self.call("GET", f"{path}?{urlencode(query)}")
            items, meta = piece.get("items"), piece.get("metadata")
            if not isinstance(items, list) or not isinstance(meta, dict):
                raise DriverError(f"{path} gives no list.")
            found += [item for item in items if isinstance(item, dict)]
            if len(found) > MAX_OBJECTS:
                raise DriverError(f"{path} has more than {MAX_OBJECTS} objects.")
            following = str(meta.get("continue") or "")
            if not following:
                return found

    async def _send(self, method: str, path: str, data: bytes, kind: str) -> tuple[int, bytes]:
        status, answer = 401, b""
        for _ in range(2):
            token = self._credentials.token()
            status, answer = await self._exchange(method, path, data, kind, token)
            # A kubelet has put a newer token there meanwhile, or it is refused for good.
            if status != 401 or self._credentials.token() == token:
                break
        return status, answer

    async def _exchange(
        self, method: str, path: str, data: bytes, kind: str, token: str | None
    ) -> tuple[int, bytes]:
        headers = {"accept": "application/json", "user-agent": "headrace"}
        if data:
            headers["content-type"] = kind
        if token:
            headers["authorization"] = f"Bearer {token}"
        pool = self._connections()
        response = await pool.request(
            method, urlsplit(self._credentials.url).path + path, headers, data
        )
        try:
            return response.status, await response.read_all(_MAX_ANSWER_BYTES)
        finally:
            pool.release(response)

    def _connections(self) -> Pool:
        address = address_of(self._credentials.url)
        authority = self._credentials.authority() if address.is_tls else None
        if self._pool is None or authority != self._authority:
            self.close()
            seconds = self._config.timeout
            self._pool = Pool(
                address,
                TimeoutConfig(connect=seconds, first_token=seconds, between_tokens=seconds),
                # A kept connection may send a request twice, which would scale twice.
                max_idle=0,
                max_buffer=_MAX_BUFFER,
                tls=tls_of(authority) if address.is_tls else None,
            )
            self._authority = authority
        return self._pool


def _refusal(method: str, path: str, status: int, answer: bytes) -> str:
    """A Status object says why."""
    try:
        said = msgspec.json.decode(answer)
    except (msgspec.DecodeError, RecursionError):
        said = None
    message = said.get("message") if isinstance(said, dict) else None
    where = path.partition("?")[0]
    words = f"{method} {where} was answered {status}"
    return f"{words}: {str(message)[:300]}" if message else f"{words}."
