"""An HTTP file server that can be told to misbehave: break off, lie, redirect, be busy."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What is served, how it fails, and what was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"one"'
    break_after: list[int] = field(default_factory=list)
    """For the next answers with a body: cut the connection after that many bytes."""
    statuses: list[int] = field(default_factory=list)
    """For the next requests: answer this instead."""
    redirects: dict[str, str] = field(default_factory=dict)
    announces_length: bool = True
    supports_ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header) of each request."""
    url: str = ""


@contextmanager
def serve_files(server: FileServer) -> Iterator[FileServer]:
    """Serve on a free port of this machine until the context ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # one request a connection, so that breaking off is simple

        def do_GET(self) -> None:
            answer(server, self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        server.url = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def answer(server: FileServer, request: BaseHTTPRequestHandler) -> None:
    path = request.path.partition("?")[0]
    asked = request.headers.get("Range")
    server.requests.append((request.path, asked))
    if server.statuses:
        request.send_error(server.statuses.pop(0))
        return
    if path in server.redirects:
        request.send_response(302)
        request.send_header("Location", server.redirects[path])
        request.end_headers()
        return
    content = server.files.get(path)
    if content is None:
        request.send_error(404)
        return
    start = 0
    is_same = request.headers.get("If-Range") == server.etag
    if asked and server.supports_ranges and is_same:
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            request.end_headers()
            return
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    else:
        request.send_response(200)
    if server.etag:
        request.send_header("ETag", server.etag)
    if server.announces_length:
        request.send_header("Content-Length", str(len(content) - start))
    request.end_headers()
    body = content[start:]
    if server.break_after:
        body = body[: server.break_after.pop(0)]
    request.wfile.write(body)
