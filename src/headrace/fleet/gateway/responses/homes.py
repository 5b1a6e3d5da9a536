"""Which replica keeps which response. A response lives where it was made; the gateway only remembers where that is."""

import hashlib
from collections import OrderedDict

from headrace.core.clock import Clock
from headrace.fleet.gateway.accounts.account import ANONYMOUS


class Homes:
    """Replicas by tenant and response. Bounded: the ids used longest ago are forgotten first, and all after a time."""

    def __init__(self, clock: Clock, *, max_responses: int, ttl: float) -> None:
        """`ttl` in seconds since the response was made."""
        self._clock = clock
        self.max_responses = max_responses
        self.ttl = ttl
        self._homes: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def note(self, tenant: str, response_id: str, replica_id: str) -> None:
        """It is kept by this replica."""
        key = (tenant, response_id)
        self._homes[key] = (self._clock.monotonic() + self.ttl, replica_id)
        self._homes.move_to_end(key)
        while len(self._homes) > self.max_responses:
            self._homes.popitem(last=False)

    def find(self, tenant: str, response_id: str) -> str | None:
        """The replica's id; None for a response of another tenant's, and for one that is not remembered."""
        key = (tenant, response_id)
        found = self._homes.get(key)
        if found is None:
            return None
        expires, replica_id = found
        if expires <= self._clock.monotonic():
            del self._homes[key]
            return None
        self._homes.move_to_end(key)
        return replica_id

    def forget(self, tenant: str, response_id: str) -> None:
        """It is kept nowhere any more."""
        self._homes.pop((tenant, response_id), None)


def owner_of(tenant: str) -> str:
    """What replicas that trust this gateway keep a tenant's responses under; empty where there are no tenants."""
    if tenant == ANONYMOUS:
        return ""
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
