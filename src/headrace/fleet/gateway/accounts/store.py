"""What accounts need of a store: limits that are checked and taken at once, and keys that outlive the process."""

from typing import Protocol

from headrace.fleet.gateway.accounts.account import StoredKey
from headrace.fleet.gateway.accounts.meters import Actual, Hold, Refusal


class Store(Protocol):
    """In this process with SQLite behind it, or Redis for several gateways."""

    @property
    def num_holds(self) -> int:
        """Requests of this gateway for which something is set aside."""
        ...

    @property
    def backlog(self) -> int:
        """Settlements that wait for the store."""
        ...

    async def start(self) -> None:
        """There is an event loop now."""
        ...

    async def tidy(self) -> None:
        """Forget what is over; now and then. Raises UnavailableError."""
        ...

    async def take(self, hold: Hold) -> Refusal | None:
        """Set all of it aside, or nothing. Raises UnavailableError where that cannot be known.

        A caller that is cancelled has nothing set aside in the end.
        """
        ...

    def settle(self, hold: Hold, actual: Actual) -> None:
        """Put back what was set aside and take what was used. Never waits, never fails, does nothing the second time."""
        ...

    async def keys(self) -> tuple[StoredKey, ...]:
        """All that were created, revoked ones too."""
        ...

    async def put_key(self, key: StoredKey, *, is_new: bool) -> bool:
        """Keep it; False where `is_new` and there is one of its name. Raises ConfigError where keys cannot be kept."""
        ...

    async def money(self, meter_ids: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        """Billionths spent and set aside, by meter."""
        ...

    async def close(self) -> None:
        """Write what waits."""
        ...
