"""The chat endpoint over plain HTTP, streamed. Standard library only: a terminal client starts at once."""

import http.client
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from headrace.core.errors import ConfigError, InternalError, UnavailableError

_CONNECT_TIMEOUT = 10.0
_TOKEN_TIMEOUT = 600.0
"""Seconds that a server may be silent within an answer: a long queue or prompt is no failure."""


class _Delta(Struct, frozen=True):
    content: str | None = None


class _Choice(Struct):
    delta: _Delta = _Delta()


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    error: Any = None


class ChatClient:
    """One server. A connection is opened for each question, and closed if the answer is left early."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            self._port = parts.port
        except ValueError:
            raise ConfigError(f"'{url}' is not a URL.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{url}' is not an http:// or https:// URL.")
        self.url = url
        self._host = parts.hostname
        self._is_tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[str]:
        """Names that the server answers to."""
        with _Exchange(self._connect(), self.url) as exchange:
            response = exchange.ask("GET", self._prefix + "/v1/models", None, self._headers)
            try:
                return [str(model["id"]) for model in msgspec.json.decode(response.read())["data"]]
            except (msgspec.DecodeError, KeyError, TypeError):
                raise ConfigError(f"{self.url} is not an OpenAI-compatible server.") from None

    def stream(
        self, messages: Sequence[Mapping[str, str]], **options: Any
    ) -> Generator[str, None, None]:
        """Pieces of the answer as they come. Closing the iterator cancels the request."""
        body = msgspec.json.encode({"messages": messages, "stream": True, **options})
        with _Exchange(self._connect(), self.url) as exchange:
            path = self._prefix + "/v1/chat/completions"
            response = exchange.ask("POST", path, body, self._headers)
            for data in _events(response):
                chunk = msgspec.json.decode(data, type=_Chunk)
                if chunk.error is not None:
                    raise InternalError(_sentence(chunk.error))
                for choice in chunk.choices or ():
                    if choice.delta.content:
                        yield choice.delta.content

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=_CONNECT_TIMEOUT, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT)


class _Exchange:
    """One question on one connection; network failures become sentences."""

    def __init__(self, connection: http.client.HTTPConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    def __enter__(self) -> "_Exchange":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._connection.close()
        if isinstance(error, ConnectionRefusedError):
            raise UnavailableError(f"No server listens at {self._url}.") from None
        if isinstance(error, TimeoutError):
            raise UnavailableError(f"{self._url} does not answer.") from None
        if isinstance(error, OSError | http.client.HTTPException | msgspec.DecodeError):
            raise UnavailableError(f"The connection to {self._url} broke: {error!r}.") from None

    def ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """The answer, if it is a 200; its error as a HeadraceError otherwise."""
        self._connection.request(method, path, body, dict(headers))
        if self._connection.sock is not None:
            self._connection.sock.settimeout(_TOKEN_TIMEOUT)
        response = self._connection.getresponse()
        if response.status != 200:
            raise InternalError(_answer_error(response))
        return response


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline():
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield data
    raise http.client.IncompleteRead(b"")  # http.client ends a cut chunked body in silence


def _answer_error(response: http.client.HTTPResponse) -> str:
    body = response.read(65_536)
    try:
        return _sentence(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"The server answered {response.status}: {body[:200].decode('utf-8', 'replace')}"


def _sentence(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
