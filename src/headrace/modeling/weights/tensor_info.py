"""What a checkpoint says about one tensor, whatever the file format. No arrays."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in its file."""

    name: str
    shape: tuple[int, ...]
    """Outputs first, inputs last, as PyTorch has it (GGUF stores it the other way round)."""
    type: str
    """F32, F16, BF16, or a GGUF block type such as Q4_K."""
    offset: int
    """Byte offset in its file."""
    nbytes: int

    @property
    def num_elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product
