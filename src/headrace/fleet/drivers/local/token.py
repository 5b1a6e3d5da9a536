"""The secret of a fleet: made once at random, known to its gateway and its replicas, kept in a file of this user's."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.config.secret import Secret
from headrace.core.errors import DriverError

_BYTES: Final = 32
_MAX_CHARS: Final = 200


def fleet_token(directory: Path) -> Secret:
    """The one that is there, or a new one; two that ask at once get the same. Raises DriverError."""
    path = directory / "peer-token"
    try:
        if (found := _read(path)) is not None:
            return found
        draft = directory / f".peer-token.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, 0o600), "w") as opened:
            opened.write(secrets.token_urlsafe(_BYTES))
        try:
            # Unlike a rename, a link does not replace the one that another process has made meanwhile.
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
        made = _read(path)
    except OSError as error:
        raise DriverError(f"{path} cannot be used: {error.strerror}.") from None
    if made is None:
        raise DriverError(f"{path} cannot be used: it is gone again.")
    return made


def _read(path: Path) -> Secret | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            text = opened.read(_MAX_CHARS + 1)
    except FileNotFoundError:
        return None
    is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise DriverError(f"{path} must be a file that only this user may read.")
    word = text.decode("ascii", errors="replace").strip()
    if (
        not 16 <= len(word) <= _MAX_CHARS
        or not word.isascii()
        or not word.isprintable()
        or " " in word
    ):
        raise DriverError(f"{path} holds no token; remove it when no replica of the fleet runs.")
    return Secret(word)
