"""Responses that can be asked for again and gone on from, bounded by number, bytes and age.

Each belongs to the API key that made it; no other key sees it. When there is no room, the key that holds most
bytes gives up its oldest. A response holds its whole conversation, so that it outlives those before it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from headrace.api.responses import InputItem, Response
from headrace.core.clock import Clock

_ITEMS: Final = msgspec.json.Decoder(list[InputItem])
_RAW_ITEMS: Final = msgspec.json.Decoder(list[Raw])


class StoredResponse(Struct, frozen=True, kw_only=True):
    """One response as JSON, and the conversation up to its end."""

    body: bytes
    """The response."""
    items: bytes
    """A list: the conversation before, the request's own items, the output."""
    num_before: int
    """Items of the conversation before."""
    num_own: int
    """Items of the request's own."""
    output_ids: tuple[str, ...]
    expires: float
    """`Clock.monotonic`."""

    @property
    def num_bytes(self) -> int:
        """What it counts for."""
        return len(self.body) + len(self.items)

    def conversation(self) -> list[InputItem]:
        """All items, output included."""
        return _ITEMS.decode(self.items)

    def own_items(self) -> list[InputItem]:
        """The input of the request itself."""
        raw = _RAW_ITEMS.decode(self.items)[self.num_before : self.num_before + self.num_own]
        return [msgspec.json.decode(item, type=InputItem) for item in raw]

    def output_item(self, item_id: str) -> InputItem:
        """One item of the output. Raises KeyError."""
        if item_id not in self.output_ids:
            raise KeyError(item_id)
        place = self.num_before + self.num_own + self.output_ids.index(item_id)
        return msgspec.json.decode(_RAW_ITEMS.decode(self.items)[place], type=InputItem)


class _Owned:
    """What one key holds, oldest first."""

    def __init__(self) -> None:
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.response_of_item: dict[str, str] = {}
        self.num_bytes = 0

    def add(self, name: str, stored: StoredResponse) -> None:
        self.responses[name] = stored
        self.num_bytes += stored.num_bytes
        self.response_of_item.update(dict.fromkeys(stored.output_ids, name))

    def drop(self, name: str) -> None:
        stored = self.responses.pop(name)
        self.num_bytes -= stored.num_bytes
        for item_id in stored.output_ids:
            self.response_of_item.pop(item_id, None)


class ResponseStore:
    """See the module. Lives on one event loop."""

    def __init__(self, clock: Clock, *, max_responses: int, max_bytes: int, ttl: float) -> None:
        """`ttl` in seconds. With `max_responses` 0 nothing is kept."""
        self._clock = clock
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._by_owner: dict[bytes, _Owned] = {}

    @property
    def is_open(self) -> bool:
        """Anything is kept at all."""
        return self._max_responses > 0

    @property
    def num_responses(self) -> int:
        """How many there are."""
        return sum(len(owned.responses) for owned in self._by_owner.values())

    @property
    def num_bytes(self) -> int:
        """What they have together."""
        return sum(owned.num_bytes for owned in self._by_owner.values())

    def put(
        self,
        owner: bytes,
        response: Response,
        before: Sequence[InputItem],
        own: Sequence[InputItem],
    ) -> None:
        """Keep a response that has ended. One that alone exceeds the bound is not kept."""
        items = msgspec.json.encode([*before, *own, *response.output])
        stored = StoredResponse(
            body=msgspec.json.encode(response),
            items=items,
            num_before=len(before),
            num_own=len(own),
            output_ids=tuple(item.id for item in response.output),
            expires=self._clock.monotonic() + self._ttl,
        )
        self._expire()
        if not self.is_open or stored.num_bytes > self._max_bytes:
            return
        while (
            self.num_responses >= self._max_responses
            or self.num_bytes + stored.num_bytes > self._max_bytes
        ):
            self._give_up_one()
        self._by_owner.setdefault(owner, _Owned()).add(response.id, stored)

    def get(self, owner: bytes, name: str) -> StoredResponse | None:
        """A response of this owner's."""
        self._expire()
        owned = self._by_owner.get(owner)
        return None if owned is None else owned.responses.get(name)

    def find_item(self, owner: bytes, item_id: str) -> InputItem | None:
        """An item of the output of a response of this owner's."""
        self._expire()
        owned = self._by_owner.get(owner)
        name = None if owned is None else owned.response_of_item.get(item_id)
        if owned is None or name is None:
            return None
        return owned.responses[name].output_item(item_id)

    def delete(self, owner: bytes, name: str) -> bool:
        """Forget a response; whether there was one."""
        if self.get(owner, name) is None:
            return False
        self._drop(owner, name)
        return True

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for owner, owned in tuple(self._by_owner.items()):
            while owned.responses:
                name, oldest = next(iter(owned.responses.items()))
                if oldest.expires > now:
                    break
                self._drop(owner, name)

    def _give_up_one(self) -> None:
        owner, owned = max(self._by_owner.items(), key=lambda entry: entry[1].num_bytes)
        self._drop(owner, next(iter(owned.responses)))

    def _drop(self, owner: bytes, name: str) -> None:
        owned = self._by_owner[owner]
        owned.drop(name)
        if not owned.responses:
            del self._by_owner[owner]
