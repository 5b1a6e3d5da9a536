"""Who may do what: which routes are open to all, and which requests come from a trusted peer."""

import hmac

from headrace.core.errors import PermissionDeniedError
from headrace.server.asgi import Scope, header

#: Routes that answer without a key. Every other one, known or not, is closed to those without.
PUBLIC_PATHS = frozenset({"/livez", "/readyz", "/health"})

PEER_HEADER = b"x-headrace-peer"


def is_public(path: str) -> bool:
    """Deny by default: exact paths, no prefixes."""
    return path in PUBLIC_PATHS


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
