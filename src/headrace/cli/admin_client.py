"""Calls of a gateway's admin API, and the flags that say where it is."""

import http.client
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.cli.flags import Parser
from headrace.config import env
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError, reason_of

KEY_VARIABLE = "HEADRACE_ADMIN_KEY"
_TIMEOUT = 30.0
_PIECE = 64 * 1024
#: What is missing of a gateway's file where one of these is not found.
_NEEDS = {
    "/replicas": "has no admin API: set gateway.admin_keys in its file",
    "/reload": "has no admin API: set gateway.admin_keys in its file",
    "/canaries": "has no admin API: set gateway.admin_keys in its file",
    "/keys": "has no admin API: set gateway.admin_keys in its file",
    "/slos": "has no admin API: set gateway.admin_keys in its file",
    "/alerts": "has no admin API: set gateway.admin_keys in its file",
    "/usage": "keeps no ledger: set gateway.admin_keys and accounts.directory in its file",
    "/usage/rows": "keeps no ledger: set gateway.admin_keys and accounts.directory in its file",
    "/pools": "has no admin API, or no pools in its file",
    "/decisions": "has no admin API, or no pools in its file",
}


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
            raise UnavailableError(
                f"There is no gateway at {self._url}: {reason_of(error)}. --gateway names another address."
            ) from None
        except msgspec.DecodeError:
            raise UnavailableError(f"{self._url} is no headrace gateway.") from None
        finally:
            connection.close()
        if response.status >= 400:
            raise self._refusal(response.status, path, str(answer["error"]["message"]))
        return answer

    def pieces(self, path: str) -> Iterator[bytes]:
        """An answer that is text, piece by piece. Raises as `call`."""
        connection = self._connection()
        try:
            connection.request("GET", f"/admin{path}", None, self._headers)
            response = connection.getresponse()
            if response.status >= 400:
                answer = msgspec.json.decode(response.read())
                raise self._refusal(response.status, path, str(answer["error"]["message"]))
            while piece := response.read(_PIECE):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"There is no gateway at {self._url}: {reason_of(error)}. --gateway names another address."
            ) from None
        except msgspec.DecodeError:
            raise UnavailableError(f"{self._url} is no headrace gateway.") from None
        finally:
            connection.close()

    def _refusal(self, status: int, path: str, message: str) -> HeadraceError:
        """What to do about an answer that is an error, where the gateway's own words do not say it."""
        # A path that is not there at all, and not only what it names.
        is_missing = message.startswith("There is no '/admin/")
        asked = path.partition("?")[0]
        need = _NEEDS.get(f"/{asked.split('/')[1]}" if is_missing else asked)
        if status == 404 and need is not None:
            return ConfigError(f"{self._url} {need}.")
        if status == 401 and "Authorization" not in self._headers:
            return ConfigError(
                f"{self._url} needs an operator's key: set {KEY_VARIABLE}, or say --admin-key."
            )
        if status == 401:
            return HeadraceError(f"{self._url} has no such operator's key in gateway.admin_keys.")
        return HeadraceError(message)

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT)
