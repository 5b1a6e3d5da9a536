"""Which requests come from a trusted peer. Keys of clients are in `keys.py`."""

import hmac

from headrace.core.errors import PermissionDeniedError
from headrace.web.asgi import Scope, header

PEER_HEADER = b"x-headrace-peer"


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
