"""Which requests come from a trusted peer, and whom it asks for. Keys of clients are in `keys.py`."""

import hashlib
import hmac
import re
from typing import Final

from headrace.core.errors import AuthenticationError, BadRequestError, PermissionDeniedError
from headrace.web.asgi import App, Receive, Scope, Send, header
from headrace.web.guard import OWNER, owner_of

PEER_HEADER = b"x-headrace-peer"
CONTROL_HEADER = b"x-headrace-control"
OWNER_HEADER = b"x-headrace-owner"
_OWNER: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_KEPT: Final = ("/v1/responses", "/responses")


def is_trusted_peer(scope: Scope, token: str | None) -> bool:
    """The request carries the peer token. Raises PermissionDeniedError for a wrong one."""
    given = header(scope, PEER_HEADER)
    if given is None:
        return False
    if token is None or not hmac.compare_digest(given.encode(), token.encode()):
        raise PermissionDeniedError(
            "The header 'x-headrace-peer' does not hold this server's token."
        )
    return True


class OwnedByPeers:
    """Keeps the stored responses of a gateway's tenants apart: a trusted peer names an owner beside its one key."""

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = header(scope, OWNER_HEADER)
        # Others than peers may send what they like: it changes nothing.
        is_kept = named is not None and scope["path"].startswith(_KEPT)
        if is_kept and named is not None and is_trusted_peer(scope, self._token):
            if not _OWNER.fullmatch(named):
                raise BadRequestError("'x-headrace-owner' must be 32 hexadecimal digits.")
            scope[OWNER] = hashlib.sha256(owner_of(scope) + b"\0" + named.encode()).digest()
        await self._app(scope, receive, send)


def check_control(scope: Scope, token: str) -> None:
    """Raises AuthenticationError without the control token, PermissionDeniedError for a wrong one."""
    given = header(scope, CONTROL_HEADER)
    if given is None:
        scheme, _, text = (header(scope, b"authorization") or "").partition(" ")
        given = text.strip() if scheme.lower() == "bearer" else None
    if given is None:
        raise AuthenticationError(
            "The header 'x-headrace-control' is missing: it holds the server's control token."
        )
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise PermissionDeniedError("This is not the server's control token.")
