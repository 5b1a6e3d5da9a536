"""Which LoRA adapters are loaded, under which names, and who still uses them.

An adapter is known by the digest of its content: two names of one content share a place. One that is
unloaded takes no new requests; its place is free when the last request that uses it has ended.
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from msgspec import structs

from headrace.config.engine import ModelConfig
from headrace.core.errors import (
    BadRequestError,
    ConfigError,
    HeadraceError,
    NotFoundError,
    OverloadedError,
)
from headrace.core.events import TokenEvent
from headrace.core.model_info import AdapterInfo, ModelInfo
from headrace.core.request import Request
from headrace.kernels.ops import Backend
from headrace.modeling.adapters.peft import LoraAdapter, read_adapter
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.spec import ModelSpec

#: Names that there may be for each place: what is loaded twice takes no memory, but its names do.
NAMES_PER_PLACE = 16


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
    """Not thread-safe, but for `read` and `fill`. `between` does what must not happen while a step runs."""

    def __init__(
        self,
        table: AdapterTable,
        spec: ModelSpec,
        between: Callable[[Callable[[], None]], None],
        *,
        max_rank: int,
        reserved: Collection[str] = (),
    ) -> None:
        """`reserved` are names that no adapter may have: the model's own."""
        self._table = table
        self._spec = spec
        self._between = between
        self._max_rank = max_rank
        self._reserved = frozenset(reserved)
        self._places: dict[str, _Place] = {}
        """By digest."""
        self._loaded: dict[str, AdapterInfo] = {}
        """By name."""
        self._users: dict[str, tuple[str, int]] = {}
        """By request: the digest, and outputs that have not ended."""
        self._unloaded: list[str] = []
        self._free = list(range(table.capacity, 0, -1))

    @property
    def loaded(self) -> tuple[AdapterInfo, ...]:
        """All that new requests may use."""
        return tuple(self._loaded.values())

    def described(self, info: ModelInfo) -> ModelInfo:
        """The same model with these adapters."""
        return structs.replace(info, adapters=self.loaded)

    def read(self, path: str) -> LoraAdapter:
        """An adapter's files; changes nothing, on any thread. Raises BadRequestError."""
        try:
            return read_adapter(Path(path), self._spec, max_rank=self._max_rank)
        except ConfigError as error:
            raise BadRequestError(str(error), param="lora_path") from None

    def check_name(self, name: str, *, in_place: bool) -> None:
        """Whether an adapter may be loaded under this name now. Raises BadRequestError or OverloadedError."""
        if name in self._reserved:
            raise BadRequestError(f"'{name}' is the model's own name.", param="lora_name")
        if name in self._loaded and not in_place:
            raise BadRequestError(
                f"An adapter named '{name}' is loaded already; 'load_inplace' would replace it.",
                param="lora_name",
            )
        limit = self._table.capacity * NAMES_PER_PLACE
        if name not in self._loaded and len(self._loaded) >= limit:
            raise OverloadedError(f"Adapters have {limit} names already: unload one.")

    def load(self, name: str, path: str, *, in_place: bool = False) -> AdapterInfo:
        """Read an adapter and put it in a place. Raises BadRequestError or OverloadedError."""
        self.check_name(name, in_place=in_place)
        return self.put(name, path, self.read(path), in_place=in_place)

    def take_place(self, adapter: LoraAdapter) -> int | None:
        """A free place for what was read, to be filled; None where it has one, or none is free.

        Nobody can use it before `put` has named it. Give it to `release` afterwards, whatever happened.
        """
        if adapter.digest in self._places or not self._free:
            return None
        place = self._places[adapter.digest] = _Place(self._free.pop())
        place.num_users = 1
        return place.index

    def fill(self, index: int, adapter: LoraAdapter) -> None:
        """Put an adapter into a place that was taken for it; on any thread, while others are used."""
        self._table.put(index, adapter.entries)

    def release(self, adapter: LoraAdapter) -> None:
        """A place that was taken is held by its names and users alone from now on."""
        self._places[adapter.digest].num_users -= 1
        self._free_place(adapter.digest)

    def put(
        self, name: str, path: str, adapter: LoraAdapter, *, in_place: bool = False
    ) -> AdapterInfo:
        """Serve what was read under this name; requests that run go on with what they began with.

        Raises BadRequestError or OverloadedError, and then nothing has changed.
        """
        self.check_name(name, in_place=in_place)
        digest, before = adapter.digest, self._loaded.get(name)
        if before is None or before.digest != digest:
            if digest not in self._places and not self._has_room(before):
                raise OverloadedError(
                    f"All {self._table.capacity} places for adapters are taken (--max-loras), also by those "
                    "that running requests still use: unload one, or wait."
                )
            if before is not None:
                self._leave(before)
            self._place_for(adapter).names.add(name)
        info = self._loaded[name] = AdapterInfo(name, path, digest)
        return info

    def unload(self, name: str) -> None:
        """Forget the name now, and the adapter when nobody uses it. Raises NotFoundError."""
        info = self._loaded.pop(name, None)
        if info is None:
            raise NotFoundError(f"No adapter is named '{name}'.")
        place = self._places[info.digest]
        (place.leaving if place.names == {name} else self._unloaded).append(name)
        self._leave(info)

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
            num_outputs = request.n if request.pooling is None else 1
            self._users[request.request_id] = (request.adapter, num_outputs)

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

    def _has_room(self, replaced: AdapterInfo | None) -> bool:
        """A place is free, or will be when nothing has the name of `replaced` any more."""
        if self._free or replaced is None:
            return bool(self._free)
        place = self._places[replaced.digest]
        return place.names == {replaced.name} and not place.num_users

    def _place_for(self, adapter: LoraAdapter) -> _Place:
        place = self._places.get(adapter.digest)
        if place is None:
            place = self._places[adapter.digest] = _Place(self._free.pop())
            index, entries = place.index, adapter.entries
            self._between(lambda: self._table.put(index, entries))
        return place

    def _leave(self, info: AdapterInfo) -> None:
        self._places[info.digest].names.discard(info.name)
        self._free_place(info.digest)

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
    if not config.lora and config.lora_root is None:
        return None
    if spec.encoder is not None:
        raise ConfigError(
            "An encoder takes no LoRA adapters: --lora and --lora-root are for decoders."
        )
    return AdapterTable(backend, config.max_loras)


def adapter_shelf(
    config: ModelConfig,
    spec: ModelSpec,
    table: AdapterTable | None,
    between: Callable[[Callable[[], None]], None],
    *,
    reserved: Collection[str],
) -> AdapterShelf | None:
    """Where there is a table, with the adapters of `--lora`. Raises ConfigError."""
    if table is None:
        return None
    shelf = AdapterShelf(table, spec, between, max_rank=config.max_lora_rank, reserved=reserved)
    for entry in config.lora:
        name, separator, path = entry.partition("=")
        if not (name and separator and path):
            raise ConfigError(f"--lora takes NAME=DIRECTORY, not '{entry}'.")
        try:
            shelf.load(name, path)
        except HeadraceError as error:
            raise ConfigError(str(error)) from error
    return shelf
