"""`headrace timeline URL`: fetch an engine's last steps for https://ui.perfetto.dev."""

import http.client
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headrace.cli.flags import Parser
from headrace.config import env
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError, reason_of

_TIMEOUT = 30.0


def main(argv: Sequence[str]) -> int:
    """Writes one file."""
    arguments = make_parser().parse(argv)
    url = arguments["url"]
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"'{url}' is not an http:// or https:// URL.")
    steps = arguments.get("steps")
    path = "/timeline" if steps is None else f"/timeline?steps={steps}"
    key = arguments.get("api_key") or env.get("OPENAI_API_KEY")
    body = _fetch(parts.scheme == "https", parts.netloc, path, key)
    out = Path(arguments["out"]).expanduser()
    out.write_bytes(body)
    num = len(msgspec.json.decode(body)["traceEvents"])
    print(
        f"{out} has {num} events; open it at https://ui.perfetto.dev, which reads it in the browser."
    )
    return 0


def make_parser() -> Parser:
    """The parser of `headrace timeline`."""
    parser = Parser("headrace timeline", "Fetch a server's last steps for Perfetto.", "URL")
    parser.add_argument("url", metavar="URL", help="address of a server")
    parser.add_argument("--out", metavar="FILE", default="timeline.json", help="where to write")
    parser.add_argument("--steps", metavar="N", type=int, help="the last so many; default all kept")
    parser.add_argument("--api-key", metavar="KEY", help="default $OPENAI_API_KEY")
    return parser


def _fetch(is_tls: bool, place: str, path: str, key: str | None) -> bytes:
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection = kind(place, timeout=_TIMEOUT)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"There is no server at {place}: {reason_of(error)}.") from None
    if response.status != 200:
        raise HeadraceError(_refusal(place, response.status, body))
    return body


def _refusal(place: str, status: int, body: bytes) -> str:
    if status == 404:
        return f"{place} has no timeline: engines of `headrace serve` have one; of a gateway, name a replica."
    try:
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    hint = " Give one with --api-key or OPENAI_API_KEY." if status == 401 else ""
    return f"{place} answered {status}: {message}{hint}"
