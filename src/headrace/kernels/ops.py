"""The catalogue: every op that a model may use, with shapes, dtypes and accumulation order.

A model is *recorded* once: it calls the methods of a `Recorder`, which checks shapes and appends to a
flat program; the program is then run once a step. Nothing but the numbers in `StepInputs` changes from
step to step. Back ends: `reference` (numpy, the specification), `cpu` (C++), `shapes` (no arithmetic).

Shape legend: T tokens of the step, R rows whose logits are wanted, S sequences in the step, H query
heads, G KV heads, D head size, C hidden size, N/K outputs/inputs of a linear, P block size, V vocabulary.

Accumulation order, which makes results independent of the batch (a row's result depends on that row's
inputs and its own sequence only):

- `linear`, quantised: per output, groups ascending; inside a group an exact integer dot product; then
  `acc = fma(float(dot) * scale_w, scale_x, acc)` and, with mins, `acc = fma(min_w, scale_x * sum_x, acc)`.
- `linear`, float: one chain per output, inputs ascending (bf16 in adjacent pairs where the instruction
  set multiplies pairs). K is never split across threads. The bias, then the residual, are added last.
- `linear`, adapters: two chains of its own per row, added after all of that. A row without an adapter is
  bitwise what it is in a step without any.
- `attention`: keys and values are read only as stored. Keys are taken in chunks that start at fixed
  multiples of `ATTENTION_CHUNK` key indices; each gives (max, sum, weighted values); they are merged in
  ascending order. Scores add over D, values over keys, ascending. Pairs, codes: `reference/attention.py`.
- `rms_norm`, `layer_norm`: one row's sums in a fixed lane order; the variance in a second pass.
- Quantising a row to int8 (`DType.Q8`) looks at that row only: per group of 32 inputs
  `scale = max|x| / 127`, `code = rint(x * (127 / max|x|))`; a group under 2^-100 counts as zeros, scale 0.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.bound import Draw, Scorer
from headrace.kernels.checks import ShapeChecks
from headrace.kernels.formats import Adapters, PackedWeight, WeightFormat
from headrace.kernels.values import (
    Activation,
    Buffer,
    DType,
    KVLayout,
    Rows,
    SampleBatch,
    SampleOutput,
    StepInputs,
    StepLimits,
)

#: Keys per attention chunk. A multiple of every block size.
ATTENTION_CHUNK = 512


class KVCache(Protocol):
    """Keys and values of all layers. The layout inside is the back end's."""

    layout: KVLayout

    def clear(self) -> None:
        """Give the memory of all blocks back: they are zeros again."""

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copy one block in every layer of the group."""

    def export_block(self, group: int, block: int) -> NDArray[np.float32]:
        """[2, layers of the group, G, P, D] as float32: canonical layout, keys then values."""

    def import_block(self, group: int, block: int, data: NDArray[np.float32]) -> None:
        """The inverse of `export_block`, rounding to the cache's dtype."""


class Program(Protocol):
    """A recorded model, ready to run."""

    @property
    def arena_bytes(self) -> int:
        """Of all its buffers."""

    def run(self, inputs: StepInputs) -> None:
        """One step. Raises KernelError for inputs that break the limits or the shapes."""

    def bind(
        self, inputs: StepInputs, buffer: Buffer, num_rows: int
    ) -> Callable[[], NDArray[np.float32]]:
        """`run`, then `read`, to be called again and again: arrays change in place, not in length."""

    def read(self, buffer: Buffer, num_rows: int) -> NDArray[np.float32]:
        """A view of the first rows of a float32 buffer, valid until the next run."""

    def clear(self) -> None:
        """Give the memory of all buffers back, between runs; the next run takes it anew."""


class Backend(Scorer, Protocol):
    """A device and its kernels: what stays while programs come and go."""

    name: str
    isa: str
    """Instruction set that its kernels use; part of the packed cache's key."""
    num_threads: int

    def operand_dtype(self, weight: WeightFormat) -> DType:
        """The dtype that the input of a linear with this weight format must have."""
        ...

    def load_weight(self, weight: PackedWeight) -> Any:
        """A handle for `Recorder.linear` and `Recorder.embed`; keeps a reference, copies nothing."""
        ...

    def create_adapters(self, num_outputs: int, num_inputs: int, capacity: int) -> Adapters:
        """A handle for `Recorder.adapt`, for a linear [N, K]; no adapter changes it yet."""
        ...

    def load_vector(self, vector: NDArray[np.float32] | Sequence[float]) -> Any:
        """A handle for norm weights, biases and inverse frequencies, rounded to float32."""
        ...

    def create_kv_cache(self, layout: KVLayout) -> KVCache:
        """Zeroed blocks; memory is touched only when written."""
        ...

    def recorder(self, limits: StepLimits, kv_cache: KVCache) -> "Recorder":
        """Start to record a program."""
        ...

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleOutput:
        """Draw one token per row; see `reference/sampling.py`. May use `logits` as scratch."""
        ...

    def bind_sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> Draw:
        """`sample`, to be called again: arrays change in place, not in length, `num_logprobs` never."""
        ...


class Recorder(ShapeChecks):
    """Records one model. Methods check shapes, then call `emit`; a back end implements the rest."""

    @abstractmethod
    def buffer(self, rows: Rows, width: int, dtype: DType = DType.F32) -> Buffer:
        """A new buffer of the arena. Contents survive until overwritten in the same step."""

    @abstractmethod
    def emit(self, op: str, **arguments: Any) -> None:
        """Append one op. `arguments` are buffers, handles and plain values, by the names below."""

    @abstractmethod
    def finish(self) -> Program:
        """Allocate the arena and return the program."""

    @abstractmethod
    def weight_shape(self, weight: Any) -> tuple[WeightFormat, int, int]:
        """(format, N, K) of a handle from `Backend.load_weight`."""

    @abstractmethod
    def adapters_shape(self, adapters: Any) -> tuple[int, int]:
        """(N, K) of a handle from `Backend.create_adapters`."""

    @abstractmethod
    def operand_dtype(self, weight: WeightFormat) -> DType:
        """As `Backend.operand_dtype`."""

    # ---- embedding and elementwise -------------------------------------------------------------

    def embed(self, table: Any, out: Buffer, *, scale: float = 1.0) -> None:
        """out[t] = table[token_ids[t]] * scale, or, of a negative id, embeddings[-1 - id] as it is.

        table [V, C] in any weight format, out f32 [T, C].
        """
        _, _, width = self.weight_shape(table)
        self._require(
            out.rows is Rows.TOKENS and out.dtype is DType.F32, "embed", "out is f32 [T, C]"
        )
        self._require(out.width == width, "embed", f"out has width {out.width}, the table {width}")
        self.emit("embed", table=table, out=out, scale=float(scale))

    def rms_norm(self, x: Buffer, weight: Any, out: Buffer, *, eps: float) -> None:
        """out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight; x f32 [*, C], out any dtype, same shape."""
        self._same_shape("rms_norm", x, out)
        self._float("rms_norm", x)
        self._length("rms_norm", weight, x.width)
        self.emit("rms_norm", x=x, weight=weight, out=out, eps=float(eps))

    def rms_norm_add(self, x: Buffer, weight: Any, out: Buffer, *, eps: float) -> None:
        """out[t] += rms_norm(x[t]) * weight; both f32 [*, C] (norms after attention and MLP)."""
        self._same_shape("rms_norm_add", x, out)
        self._float("rms_norm_add", x, out)
        self._length("rms_norm_add", weight, x.width)
        self.emit("rms_norm_add", x=x, weight=weight, out=out, eps=float(eps))

    def layer_norm(self, x: Buffer, weight: Any, bias: Any, out: Buffer, *, eps: float) -> None:
        """out[t] = (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight + bias.

        x f32 [*, C], out any dtype, same shape; it may be x itself.
        """
        self._same_shape("layer_norm", x, out)
        self._float("layer_norm", x)
        self._length("layer_norm", weight, x.width)
        self._length("layer_norm", bias, x.width)
        self.emit("layer_norm", x=x, weight=weight, bias=bias, out=out, eps=float(eps))

    def add_positions(self, table: Any, out: Buffer) -> None:
        """out[t] += table[positions[t]]; out f32 [T, C], table a vector of rows of C, positions within it."""
        self._float("add_positions", out)
        self._require(out.rows is Rows.TOKENS, "add_positions", "out is [T, C]")
        size = self.vector_size(table)
        self._require(
            size > 0 and size % out.width == 0,
            "add_positions",
            f"{size} are no rows of {out.width}",
        )
        self.emit("add_positions", table=table, out=out)

    def convert(self, x: Buffer, out: Buffer) -> None:
        """`out = x` in out's dtype; x f32."""
        self._same_shape("convert", x, out)
        self._float("convert", x)
        self.emit("convert", x=x, out=out)

    def activation(self, x: Buffer, out: Buffer, *, kind: Activation) -> None:
        """`out = kind(x)`; x f32, out any dtype, same shape."""
        self._same_shape("activation", x, out)
        self._float("activation", x)
        self.emit("activation", x=x, out=out, kind=kind)

    def gated_activation(self, x: Buffer, out: Buffer, *, kind: Activation) -> None:
        """out[t, i] = kind(x[t, i]) * x[t, I + i]; x f32 [*, 2I], out any dtype [*, I]."""
        self._float("gated_activation", x)
        self._require(
            x.width == 2 * out.width and x.rows is out.rows, "gated_activation", "x is [*, 2I]"
        )
        self.emit("gated_activation", x=x, out=out, kind=kind)

    def gather_outputs(self, x: Buffer, out: Buffer) -> None:
        """out[r] = x[output_rows[r]]; x f32 [T, C], out f32 [R, C]."""
        self._float("gather_outputs", x, out)
        self._require(
            x.rows is Rows.TOKENS and out.rows is Rows.OUTPUTS and x.width == out.width,
            "gather_outputs",
            "x is [T, C] and out [R, C]",
        )
        self.emit("gather_outputs", x=x, out=out)

    def soft_cap(self, x: Buffer, *, cap: float) -> None:
        """`x = cap * tanh(x / cap)`, in place; x f32."""
        self._float("soft_cap", x)
        self.emit("soft_cap", x=x, cap=float(cap))

    # ---- linear --------------------------------------------------------------------------------

    def linear(
        self,
        x: Buffer,
        weight: Any,
        out: Buffer,
        *,
        bias: Any = None,
        accumulate: bool = False,
        first_column: int = 0,
        scale: float = 1.0,
        adapters: Any = None,
    ) -> None:
        """out[t, first_column + n] (=, or += with `accumulate`) (x[t] . weight[n] + bias[n]) * scale.

        x [*, K] in `operand_dtype(format)`, out f32 [*, >= first_column + N], bias f32 [N] or None. With
        `adapters` (of `Backend.create_adapters`), rows that `StepInputs.adapters` gives one also get
        (up[n] . (down . x[t])) * scale: the op `adapt`.
        """
        weight_format, num_outputs, num_inputs = self.weight_shape(weight)
        self._float("linear", out)
        self._require(x.rows is out.rows, "linear", "x and out have the same rows")
        self._require(
            x.width == num_inputs, "linear", f"x has width {x.width}, the weight K = {num_inputs}"
        )
        self._require(
            first_column + num_outputs <= out.width,
            "linear",
            f"columns {first_column}..{first_column + num_outputs} exceed width {out.width}",
        )
        wanted = self.operand_dtype(weight_format)
        self._require(x.dtype is wanted, "linear", f"{weight_format} takes {wanted}, not {x.dtype}")
        if bias is not None:
            self._length("linear", bias, num_outputs)
        self.emit(
            "linear",
            x=x,
            weight=weight,
            out=out,
            bias=bias,
            accumulate=accumulate,
            first_column=first_column,
            scale=float(scale),
        )
        if adapters is not None:
            self.adapt(x, adapters, out, first_column=first_column, scale=scale)

    def adapt(
        self, x: Buffer, adapters: Any, out: Buffer, *, first_column: int = 0, scale: float = 1.0
    ) -> None:
        """out[t, first_column + n] += (up[n] . (down . x[t])) * scale, for rows that have an adapter.

        x [*, K] of any dtype, out f32 [*, >= first_column + N]; `adapters` of `Backend.create_adapters`.
        """
        num_outputs, num_inputs = self.adapters_shape(adapters)
        self._float("adapt", out)
        self._require(x.rows is out.rows, "adapt", "x and out have the same rows")
        self._require(
            x.width == num_inputs and first_column + num_outputs <= out.width,
            "adapt",
            f"the adapters are not for [{x.width}] to columns {first_column}.. of {out.width}",
        )
        numbers = {"first_column": first_column, "scale": float(scale)}
        self.emit("adapt", x=x, adapters=adapters, out=out, **numbers)

    # ---- attention -----------------------------------------------------------------------------

    def rope_table(self, out: Buffer, frequencies: Any, *, scale: float = 1.0) -> None:
        """out[t] = [cos(positions[t] * f_i) * scale ..., sin(...) * scale ...]; out f32 [T, 2 len(f)].

        Computed in double precision once a step, shared by all layers with these frequencies.
        """
        self._float("rope_table", out)
        self._require(out.rows is Rows.TOKENS, "rope_table", "out is [T, 2 * len(frequencies)]")
        self._require(
            self.vector_size(frequencies) * 2 == out.width, "rope_table", "out is [T, 2 * len(f)]"
        )
        self.emit("rope_table", out=out, frequencies=frequencies, scale=float(scale))

    def rotate_and_store(
        self,
        qkv: Buffer,
        rope: Buffer,
        *,
        layer: int,
        num_heads: int,
        q_norm: Any = None,
        k_norm: Any = None,
        eps: float = 0.0,
    ) -> None:
        """Per token: normalise query and key heads (optional, RMS over D), rotate, store K and V.

        qkv f32 [T, (H + 2G) * D], queries first, changed in place. Rotation pairs element i with
        i + rot/2 of the first `rot = rope.width` elements of each head (GPT-NeoX order). Keys and
        values are rounded to the cache's dtype (`reference/rounding.py`) from that token alone and written at
        its key index.
        """
        self._float("rotate_and_store", qkv, rope)
        head_size, num_kv_heads = self._kv_shape()
        self._require(
            qkv.width == (num_heads + 2 * num_kv_heads) * head_size,
            "rotate_and_store",
            "qkv is [T, (H + 2G) * D]",
        )
        self._require(rope.width <= head_size, "rotate_and_store", "rope is at most D wide")
        for norm in (q_norm, k_norm):
            if norm is not None:
                self._length("rotate_and_store", norm, head_size)
        self.emit(
            "rotate_and_store",
            qkv=qkv,
            rope=rope,
            layer=layer,
            num_heads=num_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=float(eps),
        )

    def attention(
        self,
        qkv: Buffer,
        out: Buffer,
        *,
        layer: int,
        num_heads: int,
        scale: float,
        soft_cap: float = 0.0,
        window: int = 0,
        is_causal: bool = True,
        mass: Buffer | None = None,
        adds_mass: bool = False,
    ) -> None:
        """softmax(q . k * scale) . v over the paged cache, scale > 0; queries are the first H*D columns of qkv.

        qkv f32 [T, (H + 2G) * D], out any dtype [T, H * D]. Scores are capped as
        `soft_cap * tanh(score / soft_cap)` when soft_cap > 0. A token at key index i sees keys in
        (i - window, i] when window > 0; without causality in (i - window, i + window). Head h reads
        KV head h * G // H. With `mass` (f32 [T, G * max_blocks]) also writes, per token, KV head and block
        of its table, the probability that fell on that block, summed over the KV head's query heads; with
        `adds_mass`, adds it to what is there.
        """
        self._float("attention", qkv)
        head_size, num_kv_heads = self._kv_shape()
        self._require(num_heads % num_kv_heads == 0, "attention", "H is a multiple of G")
        self._require(out.width == num_heads * head_size, "attention", "out is [T, H * D]")
        place = {"layer": layer, "num_heads": num_heads, "window": window, "is_causal": is_causal}
        numbers = {"scale": float(scale), "soft_cap": float(soft_cap)}
        self.emit("attention", qkv=qkv, out=out, mass=mass, adds_mass=adds_mass, **place, **numbers)

    @abstractmethod
    def _kv_shape(self) -> tuple[int, int]:
        """(D, G) of the KV cache that this program uses."""
