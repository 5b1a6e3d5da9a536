"""The adapters of one recorded model: a handle per place, filled and emptied while the model is served."""

from collections.abc import Mapping

from headrace.kernels.formats import Adapters, LowRank
from headrace.kernels.ops import Backend
from headrace.modeling.adapters.places import Place


class AdapterTable:
    """Handles by place, created as the model is recorded. `capacity` adapters fit, numbered from 1."""

    def __init__(self, backend: Backend, capacity: int) -> None:
        self._backend = backend
        self.capacity = capacity
        self._handles: dict[str, Adapters] = {}

    def handle(self, place: Place) -> Adapters:
        """For `Recorder.adapt` at this place; the same one for every program of the model."""
        handle = self._handles.get(place.name)
        if handle is None:
            handle = self._backend.create_adapters(
                place.num_outputs, place.num_inputs, self.capacity
            )
            self._handles[place.name] = handle
        return handle

    def put(self, index: int, entries: Mapping[str, LowRank]) -> None:
        """Adapter `index` is this one from the next step on. Not while a step runs that uses it."""
        for name, handle in self._handles.items():
            handle.set(index, entries.get(name))

    def remove(self, index: int) -> None:
        """Give back the memory of an adapter that no step uses any more."""
        for handle in self._handles.values():
            handle.set(index, None)
