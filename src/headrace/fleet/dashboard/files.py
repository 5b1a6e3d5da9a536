"""The files of the page. All of them stand here by name: nothing else is ever read from the disk."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from headrace.web.asgi import App, Receive, Scope, Send, header, send_body
from headrace.web.endpoint import Access, Endpoint, Operation

ROOT: Final = "/dashboard"
_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Open to everybody: they hold no data.
NAMES: Final = (
    "index.html",
    "style/base.css",
    "style/parts.css",
    "style/views.css",
    "icon.svg",
    "app.js",
    "api.js",
    "store.js",
    "dom.js",
    "format.js",
    "chart.js",
    "parts.js",
    "views/overview.js",
    "views/fleet.js",
    "views/queue.js",
    "views/scaling.js",
    "views/alerts.js",
    "views/cost.js",
    "views/requests.js",
    "views/playground.js",
)
#: Scripts and styles from here only, none inline; no frame around it; no text becomes markup anywhere.
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class File(NamedTuple):
    """One file in memory."""

    body: bytes
    content_type: str
    tag: str
    """Its ETag."""


def read_files() -> Mapping[str, File]:
    """By name."""
    return {name: _read(name) for name in NAMES}


def file_endpoints() -> list[Endpoint]:
    """`/dashboard` leads to `/dashboard/`, where the page is, with its files below."""
    files = read_files()
    page = _serving(files["index.html"])

    async def lead(_scope: Scope, _receive: Receive, send: Send) -> None:
        # Relative, so that it holds behind a proxy that adds a prefix too.
        await send_body(send, b"", status=308, headers={"location": "dashboard/", **HEADERS})

    found = [
        _endpoint(ROOT, lead, "Leads to the page."),
        _endpoint(f"{ROOT}/", page, "The dashboard."),
    ]
    found += [
        _endpoint(f"{ROOT}/{name}", _serving(file), "A file of the dashboard.")
        for name, file in files.items()
    ]
    return found


def _read(name: str) -> File:
    body = (_FOLDER / name).read_bytes()
    digest = hashlib.blake2b(body, digest_size=12).hexdigest()
    return File(body, _TYPES[name.rpartition(".")[2]], f'"{digest}"')


def _endpoint(path: str, app: App, summary: str) -> Endpoint:
    operation = Operation(
        summary=summary, tag="dashboard", content_type="text/html", access=Access.OPEN
    )
    return Endpoint("GET", path, app, operation)


def _serving(file: File) -> App:
    headers = {**HEADERS, "etag": file.tag}

    async def serve(scope: Scope, _receive: Receive, send: Send) -> None:
        if header(scope, b"if-none-match") == file.tag:
            await send_body(send, b"", status=304, content_type=file.content_type, headers=headers)
            return
        await send_body(send, file.body, content_type=file.content_type, headers=headers)

    return serve
