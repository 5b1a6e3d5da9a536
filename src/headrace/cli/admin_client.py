"""Calls of a gateway's admin API, and the flags that say where it is."""

import http.client
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.cli.flags import Parser
from headrace.config import env
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError

KEY_VARIABLE = "HEADRACE_ADMIN_KEY"
_TIMEOUT = 30.0
_PIECE = 64 * 1024
#: What every admin API has: without these there is none.
_PATHS = ("/replicas", "/reload", "/keys", "/usage", "/slos", "/alerts")
#: What gateways have whose file has pools.
_POOL_PATHS = ("/pools",)


def add_gateway(parser: Parser) -> None:
    """Add --gateway, --admin-key and --json."""
    parser.add_argument(
        "--gateway", metavar="URL", default="http://127.0.0.1:8080", help="address of the gateway"
    )
    parser.add_argument("--admin-key", metavar="KEY", help=f"default ${KEY_VARIABLE}")
    parser.add_argument("--json", action="store_true", help="show what there is as JSON")


def admin_client(arguments: Mapping[str, Any]) -> "AdminClient":
    """Of the parsed flags. Raises ConfigError."""
    return AdminClient(arguments["gateway"], arguments.get("admin_key") or env.get(KEY_VARIABLE))


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
        connection = self._connection()
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
        if response.status == 404 and path.partition("?")[0] in _PATHS:
            raise ConfigError(f"{self._url} has no admin API: set gateway.admin_keys in its file.")
        if response.status == 404 and path in _POOL_PATHS:
            raise ConfigError(f"{self._url} has no admin API, or no pools in its file.")
        if response.status >= 400:
            raise HeadraceError(str(answer["error"]["message"]))
        return answer

    def pieces(self, path: str) -> Iterator[bytes]:
        """An answer that is text, piece by piece. Raises as `call`."""
        connection = self._connection()
        try:
            connection.request("GET", f"/admin{path}", None, self._headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise HeadraceError(str(msgspec.json.decode(response.read())["error"]["message"]))
            while piece := response.read(_PIECE):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"There is no gateway at {self._url}: {error}.") from None
        except msgspec.DecodeError:
            raise UnavailableError(f"{self._url} is no headrace gateway.") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT)
