"""One decoder layer: attention and MLP, each added to the residual stream."""

from dataclasses import dataclass

from headrace.kernels.values import Buffer, Rows
from headrace.modeling.layers.attention import Attention
from headrace.modeling.layers.linear import Linear
from headrace.modeling.layers.mlp import MLP
from headrace.modeling.layers.norm import Norm
from headrace.modeling.layers.recording import Recording


@dataclass(frozen=True, slots=True)
class Sublayer:
    """The two ends that attention and MLP have alike: a norm before, a projection after."""

    norm: Norm
    output: Linear
    post_norm: Norm | None = None
    """Normalises what is added (Gemma 2 and 3)."""

    def add(self, recording: Recording, x: Buffer, residual: Buffer) -> None:
        """`residual += post_norm(x . output)`; without a post norm, in one op."""
        target = residual
        if self.post_norm is not None:
            target = recording.scratch("delta", x.rows, residual.width)
        columns = recording.shard.columns(residual.width)
        self.output.record(
            recording,
            x,
            target,
            first_column=columns.start,
            accumulate=self.post_norm is None,
        )
        recording.collectives.share_columns(recording.recorder, target, columns)
        if self.post_norm is not None:
            self.post_norm.record_add(recording, target, residual)


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer."""

    attention: Attention
    attention_ends: Sublayer
    mlp: MLP
    mlp_ends: Sublayer

    def record(self, recording: Recording, residual: Buffer, *, is_last: bool) -> Buffer:
        """Add both sublayers to the residual stream and return it.

        Behind the attention of the model's last layer only the rows whose logits are wanted matter:
        with `is_last` they are gathered there, and the MLP runs on them alone.
        """
        ends = self.attention_ends
        x = ends.norm.record(recording, residual, self.attention.qkv.input_dtype)
        mixed = self.attention.record(recording, x, ends.output)
        ends.add(recording, mixed, residual)
        if is_last:
            gathered = recording.scratch("residual", Rows.OUTPUTS, residual.width)
            recording.recorder.gather_outputs(residual, gathered)
            residual = gathered
        ends = self.mlp_ends
        x = ends.norm.record(recording, residual, self.mlp.gate_up.input_dtype)
        ends.add(recording, self.mlp.record(recording, x, ends.output), residual)
        return residual
