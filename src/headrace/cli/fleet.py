"""`headrace fleet ACTION`: show and change the replicas behind a running gateway."""

import http.client
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from headrace.cli.flags import Parser
from headrace.config import env
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError

KEY_VARIABLE = "HEADRACE_ADMIN_KEY"
_TIMEOUT = 30.0
ACTIONS = {
    "status": "Show every replica: its standing, what it has to do, how fast it is.",
    "add": "Add a replica by its URL, or change one that was added.",
    "drain": "Send a replica nothing new; what it has is finished.",
    "undrain": "Let a replica take part again.",
    "remove": "Drain a replica and forget it.",
    "reload": "Have the gateway read its configuration again.",
}
_COLUMNS = (
    "id",
    "standing",
    "circuit",
    "version",
    "num_requests",
    "num_running",
    "num_waiting",
    "models",
)


def main(argv: Sequence[str]) -> int:
    """One action. 1 if the gateway refuses it."""
    arguments = make_parser().parse(argv)
    action, target = arguments["action"], arguments.get("target")
    if (target is None) != (action in ("status", "reload")):
        raise ConfigError(f"`headrace fleet {action}` takes {'no' if target else 'a'} replica.")
    key = arguments.get("admin_key") or env.get(KEY_VARIABLE)
    client = AdminClient(arguments["gateway"], key)
    if action == "status":
        found = client.call("GET", "/replicas")
        if arguments.get("json"):
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
        else:
            print(table(found["replicas"]))
        return 0
    print(_change(client, action, target, arguments)["message"])
    return 0


def make_parser() -> Parser:
    """The parser of `headrace fleet`."""
    parser = Parser("headrace fleet", "Show and change a gateway's replicas.", "ACTION [REPLICA]")
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", default="status", choices=ACTIONS,
        help="; ".join(f"{name}: {text[:1].lower()}{text[1:-1]}" for name, text in ACTIONS.items()),
    )  # fmt: skip
    parser.add_argument("target", metavar="REPLICA", nargs="?", help="its id; for add, its URL")
    parser.add_argument(
        "--gateway", metavar="URL", default="http://127.0.0.1:8080", help="address of the gateway"
    )
    parser.add_argument("--admin-key", metavar="KEY", help=f"default ${KEY_VARIABLE}")
    parser.add_argument("--json", action="store_true", help="show the status as JSON")
    for name, text in (
        ("--id", "for add: its name"),
        ("--dialect", "for add: headrace (default), vllm, sglang, llamacpp, …"),
        ("--version", "for add: a word for what is deployed"),
    ):
        parser.add_argument(name, metavar=name[2:].upper(), help=text)
    return parser


def table(replicas: Sequence[Mapping[str, Any]]) -> str:
    """Rows under headings, as wide as they must be."""
    rows = [
        list(_COLUMNS),
        *([_cell(replica.get(name)) for name in _COLUMNS] for replica in replicas),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


class AdminClient:
    """Calls of the admin API, over the standard library."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            self._port = parts.port
        except ValueError:
            raise ConfigError(f"'{url}' is not a URL.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{url}' is not an http:// or https:// URL.")
        self._url = url
        self._host = parts.hostname
        self._is_tls = parts.scheme == "https"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """What the gateway answers. Raises UnavailableError if it does not, HeadraceError if it refuses."""
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT)
        try:
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, f"/admin{path}", data, self._headers)
            response = connection.getresponse()
            answer = msgspec.json.decode(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"There is no gateway at {self._url}: {error}.") from None
        except msgspec.DecodeError:
            raise UnavailableError(f"{self._url} is no headrace gateway.") from None
        finally:
            connection.close()
        if response.status == 404 and path in ("/replicas", "/reload"):
            raise ConfigError(f"{self._url} has no admin API: set gateway.admin_keys in its file.")
        if response.status >= 400:
            raise HeadraceError(str(answer["error"]["message"]))
        return answer


def _change(
    client: AdminClient, action: str, target: str | None, arguments: Mapping[str, Any]
) -> Any:
    if action == "reload":
        return client.call("POST", "/reload")
    assert target is not None
    if action == "add":
        names = ("id", "dialect", "version")
        chosen = {name: arguments[name] for name in names if arguments.get(name)}
        return client.call("POST", "/replicas", {"url": target, **chosen})
    path = f"/replicas/{quote(target, safe='')}"
    if action == "remove":
        return client.call("DELETE", path)
    return client.call("POST", f"{path}/{action}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ",".join(value) if isinstance(value, list) else str(value)
