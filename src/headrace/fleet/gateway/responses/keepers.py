"""Finds the replica that keeps a response: from memory, else by asking, as after a restart of the gateway.

Replicas are asked only where that shows nobody another tenant's response: peers keep responses apart by owner
(`x-headrace-owner`); others are asked only by a gateway without tenants. Where one cannot be asked at the moment, nobody
is told that the response is lost: it may lie there.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from headrace.core.errors import NotFoundError, UnavailableError
from headrace.fleet.gateway.dispatch import is_peer
from headrace.fleet.gateway.responses.homes import Homes, owner_of
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import UpstreamError

#: What a response may be called; anything else is not asked for.
NAME: Final = re.compile(r"resp_[A-Za-z0-9_-]{1,128}", re.ASCII)
#: Searches at once; others wait. Each may go to every replica.
MAX_SEARCHES: Final = 8
#: Replicas that one search asks at once.
_ABREAST: Final = 16
#: Seconds after which a client may ask again where a replica was away.
_RETRY_AFTER: Final = 2.0
_UNKNOWN: Final = "There is no such response, or it is no longer kept."
_LEFT: Final = "The replica that kept this response has left the fleet; the response is lost."


class Keepers:
    """Replicas as keepers of responses."""

    def __init__(self, registry: Registry, homes: Homes, max_bytes: int) -> None:
        """`max_bytes` is the largest response that is read."""
        self._registry = registry
        self._homes = homes
        self._max_bytes = max_bytes
        self._turns = asyncio.Semaphore(MAX_SEARCHES)

    async def find(self, tenant: str, response_id: str) -> Replica:
        """Who keeps it. Raises NotFoundError, which says whether its replica has left; or UnavailableError where none has
        it that could be asked, and others could not.
        """
        if not NAME.fullmatch(response_id):
            raise NotFoundError(_UNKNOWN)
        home = self._homes.find(tenant, response_id)
        if home is not None:
            replica = self._registry.get(home)
            if replica is None:
                raise NotFoundError(_LEFT)
            return replica
        async with self._turns:
            found = await self._search(tenant, response_id)
        if found is None:
            raise NotFoundError(_UNKNOWN)
        self._homes.note(tenant, response_id, found.id)
        return found

    async def _search(self, tenant: str, response_id: str) -> Replica | None:
        """Raises UnavailableError."""
        owner = owner_of(tenant)
        path = f"/v1/responses/{response_id}"
        candidates = [
            replica
            for replica in self._registry
            if (not owner or is_peer(replica)) and replica.backend.stored("GET", path, owner)
        ]
        ready = [replica for replica in candidates if replica.ready_since is not None]
        is_sure = len(ready) == len(candidates)
        for start in range(0, len(ready), _ABREAST):
            found, are_sure = await self._first(ready[start : start + _ABREAST], owner, path)
            if found is not None:
                return found
            is_sure &= are_sure
        if not is_sure:
            raise UnavailableError(
                "A replica that may keep this response cannot be asked at the moment.",
                retry_after=_RETRY_AFTER,
            )
        return None

    async def _first(
        self, candidates: Sequence[Replica], owner: str, path: str
    ) -> tuple[Replica | None, bool]:
        """The one that has it; and whether all others said that they do not."""
        tasks = {
            asyncio.ensure_future(self._keeps(replica, owner, path)): replica
            for replica in candidates
        }
        is_sure = True
        try:
            left = set(tasks)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.result():
                        return tasks[task], True
                    is_sure &= task.result() is not None
            return None, is_sure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keeps(self, replica: Replica, owner: str, path: str) -> bool | None:
        """None: it did not say."""
        asked = replica.backend.stored("GET", path, owner)
        if asked is None:
            return False
        patience = self._registry.health.probe_timeout
        try:
            response = await replica.pool.request(
                asked.method, asked.path, asked.headers, first_byte=patience
            )
            try:
                await response.read_all(self._max_bytes)
            finally:
                replica.pool.release(response)
        except UpstreamError:
            return None
        if response.status >= 500 or response.status == 429:
            return None
        return response.status == 200
