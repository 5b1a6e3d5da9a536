"""The gated MLP, activation(gate) * up, and the plain one, activation(up)."""

from dataclasses import dataclass

from headrace.kernels.values import Buffer
from headrace.modeling.layers.linear import Linear
from headrace.modeling.layers.recording import Recording
from headrace.modeling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class MLP:
    """One layer's MLP, without its output projection."""

    spec: ModelSpec
    gate_up: Linear

    def record(self, recording: Recording, x: Buffer, down: Linear) -> Buffer:
        """The activated rows [*, I], as `down` takes them."""
        width = len(recording.shard.columns(self.spec.intermediate_size))
        gate_up = recording.scratch("gate_up", x.rows, 2 * width)
        self.gate_up.record(recording, x, gate_up)
        active = recording.scratch("active", x.rows, width, down.input_dtype)
        recording.recorder.gated_activation(gate_up, active, kind=self.spec.activation)
        return recording.collectives.gather_columns(
            recording.recorder, active, self.spec.intermediate_size
        )


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """One encoder layer's MLP, without its output projection."""

    spec: ModelSpec
    up: Linear

    def record(self, recording: Recording, x: Buffer, down: Linear) -> Buffer:
        """The activated rows [*, I], as `down` takes them."""
        width = self.spec.intermediate_size
        inner = recording.scratch("inner", x.rows, width)
        self.up.record(recording, x, inner)
        active = recording.scratch("active", x.rows, width, down.input_dtype)
        recording.recorder.activation(inner, active, kind=self.spec.activation)
        return active
