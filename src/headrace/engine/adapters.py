"""Which LoRA adapters are loaded, under which names, and who still uses them.

An adapter is known by the digest of its content: two names of one content share a place. One that is
unloaded takes no new requests; its place is free when the last request that uses it has ended.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.config.engine import ModelConfig
from headrace.core.errors import (
    BadRequestError,
    ConfigError,
    HeadraceError,
    NotFoundError,
    OverloadedError,
)
from headrace.core.events import TokenEvent
from headrace.core.model_info import AdapterInfo
from headrace.core.request import Request
from headrace.kernels.ops import Backend
from headrace.modeling.adapters.peft import read_adapter
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.spec import ModelSpec


class _Place:
    """A loaded adapter."""

    __slots__ = ("index", "leaving", "names", "num_users")

    def __init__(self, index: int) -> None:
        self.index = index
        self.names: set[str] = set()
        self.num_users = 0
        self.leaving: list[str] = []
        """Names that were unloaded and are told of when the place is free."""


class AdapterShelf:
    """Not thread-safe. `between` does what must not happen while a step runs."""

    def __init__(
        self,
        table: AdapterTable,
        spec: ModelSpec,
        between: Callable[[Callable[[], None]], None],
        *,
        max_rank: int,
    ) -> None:
        self._table = table
        self._spec = spec
        self._between = between
        self._max_rank = max_rank
        self._places: dict[str, _Place] = {}
        """By digest."""
        self._digests: dict[str, str] = {}
        """By name."""
        self._users: dict[str, tuple[str, int]] = {}
        """By request: the digest, and outputs that have not ended."""
        self._unloaded: list[str] = []
        self._free = list(range(table.capacity, 0, -1))

    def load(self, name: str, path: str) -> AdapterInfo:
        """Read an adapter and put it in a place. Raises BadRequestError or OverloadedError."""
        if name in self._digests:
            raise BadRequestError(f"An adapter named '{name}' is loaded.", param="lora_name")
        try:
            adapter = read_adapter(Path(path), self._spec, max_rank=self._max_rank)
        except ConfigError as error:
            raise BadRequestError(str(error), param="lora_path") from None
        place = self._places.get(adapter.digest)
        if place is None:
            if not self._free:
                raise OverloadedError(
                    f"All {self._table.capacity} places for adapters are taken (--max-loras): unload one."
                )
            place = self._places[adapter.digest] = _Place(self._free.pop())
            index, entries = place.index, adapter.entries
            self._between(lambda: self._table.put(index, entries))
        place.names.add(name)
        self._digests[name] = adapter.digest
        return AdapterInfo(name, path, adapter.digest)

    def unload(self, name: str) -> None:
        """Forget the name now, and the adapter when nobody uses it. Raises NotFoundError."""
        digest = self._digests.pop(name, None)
        if digest is None:
            raise NotFoundError(f"No adapter is named '{name}'.")
        place = self._places[digest]
        place.names.discard(name)
        if place.names:
            self._unloaded.append(name)
        else:
            place.leaving.append(name)
            self._free_place(digest)

    def take_unloaded(self) -> list[str]:
        """Names that are unloaded for good, since the last call."""
        names, self._unloaded = self._unloaded, []
        return names

    def index_of(self, request: Request) -> int:
        """The place of the adapter of a request that entered; -1 when it was not loaded then."""
        user = self._users.get(request.request_id)
        return -1 if user is None else self._places[user[0]].index

    def enter(self, request: Request) -> None:
        """The request uses its adapter, if that is loaded, until all its outputs have ended."""
        place = self._places.get(request.adapter) if request.adapter is not None else None
        if place is not None and request.adapter is not None and place.names:
            place.num_users += 1
            self._users[request.request_id] = (request.adapter, request.n)

    def watch(self, events: Iterable[TokenEvent]) -> None:
        """See which requests end with these events."""
        if not self._users:
            return
        for event in events:
            if event.finish is None or event.request_id not in self._users:
                continue
            digest, num_open = self._users.pop(event.request_id)
            if num_open > 1:
                self._users[event.request_id] = (digest, num_open - 1)
                continue
            self._places[digest].num_users -= 1
            self._free_place(digest)

    def _free_place(self, digest: str) -> None:
        place = self._places[digest]
        if place.names or place.num_users:
            return
        del self._places[digest]
        self._between(lambda: self._table.remove(place.index))
        self._free.append(place.index)
        self._unloaded += place.leaving


def adapter_table(config: ModelConfig, spec: ModelSpec, backend: Backend) -> AdapterTable | None:
    """None where nobody can load an adapter: the recorded model then has no place for any."""
    if not config.lora:
        return None
    if spec.encoder is not None:
        raise ConfigError("An encoder takes no LoRA adapters: --lora is for decoders.")
    return AdapterTable(backend, config.max_loras)


def load_at_start(config: ModelConfig, shelf: AdapterShelf | None) -> tuple[AdapterInfo, ...]:
    """Those of `--lora`. Raises ConfigError."""
    if shelf is None:
        return ()
    loaded: list[AdapterInfo] = []
    for entry in config.lora:
        name, separator, path = entry.partition("=")
        if not (name and separator and path):
            raise ConfigError(f"--lora takes NAME=DIRECTORY, not '{entry}'.")
        try:
            loaded.append(shelf.load(name, path))
        except HeadraceError as error:
            raise ConfigError(str(error)) from error
    return tuple(loaded)
