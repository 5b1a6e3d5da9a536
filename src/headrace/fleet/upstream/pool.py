"""Connections to one replica, kept open between requests."""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.fleet.upstream.connection import Connection, Response
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Seconds that a connection may be idle and still be used again: less than the 5 s after which uvicorn closes.
MAX_IDLE_SECONDS = 4.0


class Address(NamedTuple):
    """Where a server is."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> str:
        """For the Host header; signatures of requests depend on it. A default port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def address_of(url: str) -> Address:
    """The address that an http:// or https:// URL names."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    return Address(parts.hostname or "", port, is_tls)


class Pool:
    """Keep-alive connections to one address. The most recently used one is used first."""

    def __init__(
        self,
        address: Address,
        timeouts: TimeoutConfig,
        *,
        max_idle: int,
        max_buffer: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` says whom to trust where the address is TLS; default the authorities of this machine."""
        self.address = address
        self.timeouts = timeouts
        self._max_idle = max_idle
        self._max_buffer = max_buffer
        self._idle: deque[tuple[float, Connection]] = deque()
        self._tls = (tls or ssl.create_default_context()) if address.is_tls else None
        self._is_closed = False

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        first_byte: float | None = None,
    ) -> Response:
        """Send a request and wait for the head of its answer. Raises UpstreamError.

        A kept connection that ends before a byte of an answer was most likely closed by the replica while it was idle: the
        request is sent once more, on a new one.
        """
        request = self._encode(method, path, headers, body)
        connection = self._take_idle() or await self._connect()
        is_kept = connection.has_carried
        while True:
            response = connection.send(
                request,
                first_byte=first_byte or self.timeouts.first_token,
                between=self.timeouts.between_tokens,
                max_buffer=self._max_buffer,
            )
            try:
                await response.begin()
            except UpstreamError as failure:
                if not is_kept or failure.kind is not FailureKind.CUT:
                    raise
            except asyncio.CancelledError:
                connection.close()  # whatever has come: nobody will release it
                raise
            else:
                return response
            is_kept = False
            connection = await self._connect()

    def release(self, response: Response) -> None:
        """Nobody reads the answer any more: its connection is kept if it can be, else closed."""
        connection = response.connection
        self._close_stale()
        # One whose answer was not read to its end may have stopped reading: it would never hear the next one.
        can_stay = connection.is_reusable and not response.is_paused
        if can_stay and not self._is_closed and len(self._idle) < self._max_idle:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            response.abort()
            connection.close()

    def close(self) -> None:
        """Close what is idle; what is under way goes on."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[1].close()

    def _close_stale(self) -> None:
        """Those that were idle for long stand first."""
        now = asyncio.get_running_loop().time()
        while self._idle and not self._is_fresh(*self._idle[0], now):
            self._idle.popleft()[1].close()

    @staticmethod
    def _is_fresh(since: float, connection: Connection, now: float) -> bool:
        return connection.is_reusable and now - since < MAX_IDLE_SECONDS

    def _take_idle(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, connection = self._idle.pop()
            if self._is_fresh(since, connection, now):
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(self.timeouts.connect):
                _, connection = await loop.create_connection(
                    Connection, address.host, address.port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamError(
                FailureKind.CONNECT, f"no connection after {self.timeouts.connect:g} s"
            ) from None
        except OSError as error:
            raise UpstreamError(FailureKind.CONNECT, error.strerror or str(error)) from None
        except UnicodeError:
            raise UpstreamError(FailureKind.CONNECT, f"'{address.host}' is no host name") from None
        return connection

    def _encode(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {self.address.authority}",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method == "POST":
            lines.append(f"content-length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
