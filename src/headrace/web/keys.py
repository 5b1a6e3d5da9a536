"""API keys: several, each with a name, kept as hashes and compared in constant time.

    KEY                     one key; its name is key-N, N counting from 1
    NAME:KEY                with a name for logs and metrics
    NAME:sha256:HEX         its SHA-256, so that the file itself gives nothing away

Keys are random and long, so one round of SHA-256 is enough: there is nothing to guess.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from headrace.config.security import SecurityConfig
from headrace.core.clock import Clock
from headrace.core.errors import AuthenticationError, ConfigError
from headrace.web.asgi import Scope, header

MAX_KEYS: Final = 1000
MAX_KEY_FILE_BYTES: Final = 1024 * 1024
#: Seconds between two looks at the file.
LOOK_PERIOD: Final = 1.0
_HASHED: Final = "sha256:"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")

log = logging.getLogger("headrace.server")


class Key(NamedTuple):
    """Who calls. The digest identifies a key; the name is for people."""

    name: str
    digest: bytes


#: What a file looked like when it was read: time, size, inode.
_Look = tuple[int, int, int]


class KeyRing:
    """The keys that are good now. One event loop's."""

    def __init__(self, security: SecurityConfig, clock: Clock) -> None:
        """Raises ConfigError, which never quotes a key."""
        self._clock = clock
        self._file = Path(security.api_key_file).expanduser() if security.api_key_file else None
        given = (security.api_keys or "").split(",")
        self._given = [(f"API key {n} of api_keys", text) for n, text in enumerate(given, 1)]
        self.is_needed: Final = self._file is not None or security.api_keys is not None
        """Some key was configured: nobody gets in without one, whatever becomes of the file."""
        self._next_look = clock.monotonic() + LOOK_PERIOD
        self._look: _Look | None = self._look_at_file()
        self._keys = self._read()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all keys."""
        return tuple(key.name for key in self._keys)

    def find(self, text: str) -> Key | None:
        """The key with this text. Takes as long for a wrong one, however much of it is right."""
        self._refresh()
        digest = _digest(text)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key  # no way out of the loop: its length must not tell
        return found

    def of_owner(self, digest: bytes) -> Key | None:
        """The key with this digest, if it is still good."""
        self._refresh()
        return next((key for key in self._keys if key.digest == digest), None)

    def authenticate(self, scope: Scope) -> Key:
        """The key that a request brings. Raises AuthenticationError."""
        bearer = header(scope, b"authorization") or ""
        scheme, _, token = bearer.partition(" ")
        given = [header(scope, b"x-api-key"), token.strip() if scheme.lower() == "bearer" else None]
        for text in filter(None, given):
            if (key := self.find(text)) is not None:
                return key
        if any(given):
            raise AuthenticationError("The API key is not valid for this server.")
        raise AuthenticationError(
            "This server needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
        )

    def _refresh(self) -> None:
        """Read the file again if it has changed; a file that is no good changes nothing."""
        now = self._clock.monotonic()
        if self._file is None or now < self._next_look:
            return
        self._next_look = now + LOOK_PERIOD
        look = self._look_at_file()
        if look == self._look:
            return
        self._look = look
        try:
            self._keys = self._read()
        except ConfigError as error:
            log.error("%s The keys of before stay good.", error)
        else:
            log.info("API keys were read again: %d", len(self._keys))

    def _look_at_file(self) -> _Look | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[Key, ...]:
        entries = list(self._given)
        if self._file is not None:
            entries += _lines(self._file)
        keys = _parse(entries)
        if self.is_needed and not keys:
            raise ConfigError(f"There is no API key in {self._file or 'api_keys'}.")
        return keys


def _lines(file: Path) -> list[tuple[str, str]]:
    """Each line and what to call it. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_KEY_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"The API key file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The API key file {file} is not text.") from None
    if len(content) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"The API key file {file} has more than {MAX_KEY_FILE_BYTES} bytes.")
    lines = enumerate(text.splitlines(), 1)
    return [(f"Line {n} of {file}", line) for n, line in lines if not line.lstrip().startswith("#")]


def _parse(entries: Iterable[tuple[str, str]]) -> tuple[Key, ...]:
    keys: list[Key] = []
    names: set[str] = set()
    digests: set[bytes] = set()
    for place, text in entries:
        if not text.strip():
            continue
        key = _entry(text.strip(), place, len(keys) + 1)
        if key.name in names or key.digest in digests:
            what = f"the name '{key.name}'" if key.name in names else "the key"
            raise ConfigError(f"{place} repeats {what} of another one.")
        names.add(key.name)
        digests.add(key.digest)
        keys.append(key)
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"There are more than {MAX_KEYS} API keys.")
    return tuple(keys)


def _entry(text: str, place: str, number: int) -> Key:
    name, secret = f"key-{number}", text
    head, colon, tail = text.partition(":")
    if colon and head + colon != _HASHED and _NAME.fullmatch(head):
        name, secret = head, tail.strip()
    if secret.startswith(_HASHED):
        hexadecimal = secret.removeprefix(_HASHED)
        if not _HEX.fullmatch(hexadecimal):
            raise ConfigError(f"{place} is not 64 hexadecimal digits after 'sha256:'.")
        return Key(name, bytes.fromhex(hexadecimal))
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ConfigError(f"{place} must be printable ASCII without spaces.")
    return Key(name, _digest(secret))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
