"""What can go wrong between the gateway and a replica, as one exception with a kind."""

from enum import StrEnum


class FailureKind(StrEnum):
    """Why an exchange with a replica failed."""

    CONNECT = "connect"
    """No connection: refused, unreachable, or not in time."""
    FIRST_BYTE = "first_byte"
    """Nothing of the answer's body came in time."""
    STALLED = "stalled"
    """The answer stopped coming."""
    CUT = "cut"
    """The connection ended before the answer did."""
    GARBAGE = "garbage"
    """What came is not HTTP, or not an answer of this API."""
    STATUS = "status"
    """The replica answered that it failed (5xx)."""
    OVERLOADED = "overloaded"
    """The replica has no room (429 or 503): alive, but not for this request."""
    MODEL = "model"
    """The model says that it failed at the request, which may be the request's doing; the replica is well."""
    SUPERSEDED = "superseded"
    """Another replica has begun the answer."""
    REFUSED = "refused"
    """The replica did not let us in (401, 403), or does not have the model any more (404)."""


class UpstreamError(Exception):
    """An exchange failed. Inside the fleet only: clients get an error of `core.errors`."""

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        retry_after: float | None = None,
        is_doubtful: bool = False,
        http_status: int | None = None,
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after
        """Seconds, as the replica said."""
        self.is_doubtful = is_doubtful
        """It may be the doing of the request, and not of the replica."""
        self.http_status = http_status
        """Of its answer, where that says the failure."""
        self.replica_id = ""
        """Whose failure it is, once that is known."""
