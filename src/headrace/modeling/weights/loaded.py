"""All parameters of a model, packed."""

from collections.abc import Iterator, Mapping

from headrace.modeling.weights.parameters import LoadedParameter


class LoadedWeights(Mapping[str, LoadedParameter]):
    """Every parameter by name. Arrays may be read-only views of a mapped file."""

    def __init__(
        self, parameters: Mapping[str, LoadedParameter], digest: str, *, is_mapped: bool
    ) -> None:
        self._parameters = parameters
        self.digest = digest
        """Hex sha256 of the weights as served: the files' content and how it was quantised."""
        self.is_mapped = is_mapped
        """The arrays lie in the packed cache, not in memory of this process."""

    def __getitem__(self, name: str) -> LoadedParameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(size_of(parameter) for parameter in self._parameters.values())

    @property
    def num_elements(self) -> int:
        """Of all weight matrices."""
        return sum(
            part.weight.num_outputs * part.weight.num_inputs
            for parameter in self._parameters.values()
            if isinstance(parameter, tuple)
            for part in parameter
        )


def size_of(parameter: LoadedParameter) -> int:
    """Bytes of one parameter's arrays."""
    if isinstance(parameter, tuple):
        return sum(part.weight.data.nbytes for part in parameter)
    return parameter.nbytes
