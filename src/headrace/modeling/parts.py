"""Loaded parameters as layers, with handles of one back end."""

from collections.abc import Mapping
from typing import Any

from headrace.core.errors import ModelLoadError
from headrace.kernels.ops import Backend
from headrace.modeling.adapters.places import places
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.layers.linear import Linear
from headrace.modeling.layers.norm import LayerNorm, Norm
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import LoadedParameter


class Parts:
    """Finds a model's parameters by name. Raises ModelLoadError for what is not there or another kind."""

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        parameters: Mapping[str, LoadedParameter],
        adapters: AdapterTable | None = None,
    ) -> None:
        """`parameters` are those of `registry.describe`, loaded; `adapters` get a handle for each place."""
        self._adapters = adapters
        self._backend = backend
        self._spec = spec
        self._parameters = parameters

    def linear(self, name: str) -> Linear:
        """A matrix, with the vector `name.bias` if there is one."""
        parts = self._find(name)
        bias = self._parameters.get(f"{name}.bias")
        if not isinstance(parts, tuple) or isinstance(bias, tuple):
            raise ModelLoadError(f"The parameter '{name}' is not a matrix with a vector as bias.")
        table = self._adapters
        found = () if table is None else places(self._spec, name)
        handles = [(place.first_column, table.handle(place)) for place in found if table]
        return Linear(self._backend, parts, bias, handles)

    def norm(self, name: str) -> Norm:
        """One by root mean square."""
        return Norm(self.vector(name), self._spec.norm_eps)

    def layer_norm(self, name: str) -> LayerNorm:
        """One with a bias."""
        return LayerNorm(self.vector(name), self.vector(f"{name}.bias"), self._spec.norm_eps)

    def vector(self, name: str) -> Any:
        """The handle of a vector."""
        vector = self._find(name)
        if isinstance(vector, tuple):
            raise ModelLoadError(f"The parameter '{name}' is not a vector.")
        return self._backend.load_vector(vector)

    def _find(self, name: str) -> LoadedParameter:
        if name not in self._parameters:
            raise ModelLoadError(f"The parameter '{name}' was not loaded.")
        return self._parameters[name]
