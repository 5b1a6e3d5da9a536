"""What is set aside for one request, until it is known what it came to."""

from types import TracebackType
from typing import Self

from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.accounts.meters import NOTHING, Actual, Hold
from headrace.fleet.gateway.accounts.store import Store


class Reservation:
    """Settled exactly once: by `settle`, by `release`, or by leaving its `with`, which releases.

    None of them waits or fails, so they may stand in any `finally`.
    """

    __slots__ = ("_hold", "_store", "account", "is_open")

    def __init__(self, store: Store, account: Account, hold: Hold | None) -> None:
        """`hold` is None where nothing limits the account."""
        self._store = store
        self._hold = hold
        self.account = account
        self.is_open = True

    def settle(self, *, tokens: int, cost: int) -> None:
        """It came to this: tokens of prompt and answer, and billionths. Does nothing the second time."""
        self._end(Actual(tokens=tokens, cost=cost))

    def release(self) -> None:
        """It was never served: everything goes back. Does nothing the second time."""
        self._end(NOTHING)

    def _end(self, actual: Actual) -> None:
        if self.is_open:
            self.is_open = False
            if self._hold is not None:
                self._store.settle(self._hold, actual)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
