"""Files over https (plain http only from this machine), with the standard library."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any, Final

from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources.transfer import CHUNK_BYTES, Reply, TransientError

TIMEOUT: Final = 30.0
MAX_REDIRECTS: Final = 5
#: Answers after which the same request may succeed.
TRANSIENT_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def check_url(url: str) -> None:
    """https, or http from this machine; no credentials. Raises DownloadError."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise DownloadError(f"'{url}' is not a URL: {error}.") from error
    if not host:
        raise DownloadError(f"'{url}' names no host.")
    if parts.username or parts.password:
        raise DownloadError("A URL with a password would be kept in logs; remove it.")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOCAL_HOSTS):
        raise DownloadError(f"'{url}' is not https; plain http is only for this machine.")


@dataclass(frozen=True, slots=True)
class HTTPFile:
    """A file behind a URL."""

    url: str

    @property
    def label(self) -> str:
        """The URL without its query, which may hold a signature."""
        return self.url.partition("?")[0]

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Reply]:
        """Ask for the bytes from `start` on, valid only for `version` (If-Range)."""
        headers = {"User-Agent": "headrace", "Accept-Encoding": "identity"}
        if start > 0 and version is not None:
            headers |= {"Range": f"bytes={start}-", "If-Range": version}
        request = urllib.request.Request(self.url, headers=headers)
        opener = urllib.request.build_opener(_CarefulRedirects())
        try:
            with opener.open(request, timeout=TIMEOUT) as response:
                yield self._reply(response, start)
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            if error.code == 416 and _complete_size(error.headers) == start:
                yield Reply(start, start, version, iter(()))
                return
            raise self._explain(error) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise TransientError(str(reason)) from error

    def _reply(self, response: Any, asked: int) -> Reply:
        headers: Message = response.headers
        length = _number(headers.get("Content-Length"))
        start = 0
        if response.status == 206:
            start = (
                _number((headers.get("Content-Range") or "").removeprefix("bytes ").split("-")[0])
                or 0
            )
            if start != asked:
                raise DownloadError(f"{self.label} answered with another range than was asked for.")
        elif response.status != 200:
            raise DownloadError(f"{self.label} answered {response.status}.")
        total = None if length is None else start + length
        return Reply(start, total, _validator(headers), _chunks(response))

    def _explain(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in TRANSIENT_STATUS:
            return TransientError(f"the server answered {error.code} {error.reason}")
        return DownloadError(f"{self.label} answered {error.code} {error.reason}.")


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """A few redirects, none from https to anything less."""

    max_redirections = MAX_REDIRECTS
    max_repeats = 2

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            check_url(newurl)
            if req.full_url.startswith("https:") and not newurl.startswith("https:"):
                raise DownloadError("A redirect leads from https to plain http.")
        except DownloadError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _chunks(response: Any) -> Iterator[bytes]:
    while chunk := response.read(CHUNK_BYTES):
        yield chunk


def _validator(headers: Message) -> str | None:
    """What If-Range accepts: a strong ETag."""
    tag = headers.get("ETag")
    return None if tag is None or tag.startswith("W/") else str(tag)


def _complete_size(headers: Message) -> int | None:
    """N of `Content-Range: bytes */N`."""
    return _number((headers.get("Content-Range") or "").rpartition("/")[2])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
