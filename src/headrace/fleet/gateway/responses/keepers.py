"""Finds the replica that keeps a response: from memory, else by asking, as after a restart of the gateway.

Replicas are asked only where that shows nobody another tenant's response: peers keep responses apart by owner
(`x-headrace-owner`); others are asked only by a gateway without tenants.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from headrace.core.errors import NotFoundError
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
        """Who keeps it. Raises NotFoundError, which says whether its replica has left."""
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
        owner = owner_of(tenant)
        candidates = [
            replica
            for replica in self._registry
            if replica.ready_since is not None and (not owner or is_peer(replica))
        ]
        for start in range(0, len(candidates), _ABREAST):
            found = await self._first(candidates[start : start + _ABREAST], owner, response_id)
            if found is not None:
                return found
        return None

    async def _first(
        self, candidates: Sequence[Replica], owner: str, response_id: str
    ) -> Replica | None:
        tasks = {
            asyncio.ensure_future(self._keeps(replica, owner, response_id)): replica
            for replica in candidates
        }
        try:
            left = set(tasks)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.result():
                        return tasks[task]
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keeps(self, replica: Replica, owner: str, response_id: str) -> bool:
        asked = replica.backend.stored("GET", f"/v1/responses/{response_id}", owner)
        if asked is None:
            return False
        patience = self._registry.health.probe_timeout
        try:
            response = await replica.pool.request(
                asked.method, asked.path, asked.headers, first_byte=patience
            )
            try:
                await response.read_all(self._max_bytes)
                return response.status == 200
            finally:
                replica.pool.release(response)
        except UpstreamError:
            return False
