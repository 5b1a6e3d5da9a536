"""uvicorn's HTTP/1.1 protocol with a bound on the request line and headers, and our error object."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.server.problems import Answer, HttpError, answer_to

#: Request line and headers together. Real clients send 1 to 2 kB.
MAX_HEADER_BYTES = 64 * 1024


class HeaderTooLargeError(Exception):
    """Raised inside the parser, which reports it as a parser error."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _num_header_bytes = 0

    def on_message_begin(self) -> None:
        """Part of httptools' callbacks."""
        self._num_header_bytes = 0
        super().on_message_begin()  # type: ignore[no-untyped-call, unused-ignore]

    def on_url(self, url: bytes) -> None:
        """Part of httptools' callbacks."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' callbacks."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """The request cannot be parsed: an error object, and the end of the connection."""
        if self._num_header_bytes > MAX_HEADER_BYTES:
            answer = answer_to(
                HttpError(431, f"The headers have more than {MAX_HEADER_BYTES} bytes.")
            )
        else:
            answer = answer_to(HttpError(400, "This is not a valid HTTP request."))
        self.transport.write(_raw(answer, self.server_state.default_headers))
        self.transport.close()

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise HeaderTooLargeError


def _raw(answer: Answer, default_headers: Any) -> bytes:
    lines = [STATUS_LINE[answer.status].rstrip()]
    lines += [name + b": " + value for name, value in default_headers]
    lines += [
        b"content-type: application/json",
        b"content-length: %d" % len(answer.body),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + answer.body
