"""Request bodies in memory: how many bytes all of them may have together, and reading one."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from headrace.core.errors import OverloadedError
from headrace.web.asgi import Receive, Scope, header


class Reservation:
    """Bytes of one body, from before it is read until it is tokens. A context manager."""

    __slots__ = ("_budget", "_num_bytes")

    def __init__(self, budget: "BodyBudget", num_bytes: int) -> None:
        self._budget = budget
        self._num_bytes = num_bytes

    def cover(self, num_bytes: int) -> None:
        """The body has at least this many bytes. Raises OverloadedError when there is no room for them."""
        if num_bytes > self._num_bytes:
            self._budget.take(num_bytes - self._num_bytes)
            self._num_bytes = num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._budget.give_back(self._num_bytes)
        self._num_bytes = 0


class BodyBudget:
    """Counts the bytes of all bodies that are being read or prepared."""

    def __init__(self, max_bytes: int, on_reject: Callable[[str], None] = lambda _: None) -> None:
        self._max_bytes = max_bytes
        self._on_reject = on_reject
        self.num_bytes = 0

    def reserve(self, scope: Scope) -> Reservation:
        """Room for the body that the headers announce. Raises OverloadedError when there is none."""
        declared = header(scope, b"content-length")
        num_bytes = int(declared) if declared is not None and declared.isdecimal() else 0
        self.take(num_bytes)
        return Reservation(self, num_bytes)

    def take(self, num_bytes: int) -> None:
        """Called by reservations. Raises OverloadedError."""
        if self.num_bytes + num_bytes > self._max_bytes:
            self._on_reject("bodies")
            raise OverloadedError(
                f"Request bodies of {self.num_bytes} bytes are being read already; try again later."
            )
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Called by reservations."""
        self.num_bytes -= num_bytes


async def read_body(receive: Receive, reservation: Reservation) -> bytes | None:
    """The whole request body; None when the client left before its end. Raises OverloadedError."""
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        num_bytes += len(part)
        reservation.cover(num_bytes)  # one that comes in chunks announces nothing
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
