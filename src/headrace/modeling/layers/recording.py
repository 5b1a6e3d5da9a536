"""What the layers of a model share while it is being recorded."""

from dataclasses import dataclass, field

from headrace.kernels.ops import Recorder
from headrace.kernels.values import Buffer, DType, Rows
from headrace.modeling.collectives import Collectives
from headrace.modeling.sharding import Shard


@dataclass(slots=True)
class Recording:
    """One program in the making, and its scratch buffers, which every layer uses again."""

    recorder: Recorder
    shard: Shard
    collectives: Collectives
    ropes: tuple[Buffer, ...] = ()
    """Tables of cosines and sines, by index into `ModelSpec.ropes`."""
    mass: Buffer | None = None
    """Where layers without a window add what attention falls on, by KV head and block; None: it is not told."""
    has_mass: bool = False
    """Some layer did."""
    _scratch: dict[tuple[str, Rows, int, DType], Buffer] = field(default_factory=dict)

    def scratch(self, name: str, rows: Rows, width: int, dtype: DType = DType.F32) -> Buffer:
        """The buffer of this name and shape. Whoever asks for it again overwrites it."""
        key = (name, rows, width, dtype)
        if key not in self._scratch:
            self._scratch[key] = self.recorder.buffer(rows, width, dtype)
        return self._scratch[key]
