"""One step of the reference back end: each op reads the arena, calls its specification, writes back."""

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.formats import QuantizedMatrix
from headrace.kernels.reference import attention, elementwise, linear
from headrace.kernels.reference.adapters import ReferenceAdapters
from headrace.kernels.reference.inputs import require
from headrace.kernels.reference.kv_cache import ReferenceKVCache
from headrace.kernels.reference.rounding import QuantizedRows, quantize_rows, round_to
from headrace.kernels.reference.weights import ReferenceWeight
from headrace.kernels.values import Activation, Buffer, DType, Rows, StepInputs

Float32 = NDArray[np.float32]


class ReferenceStep:
    """The arena's contents and the ops that change them. Op names are those of `Recorder.emit`."""

    def __init__(self, inputs: StepInputs, kv_cache: ReferenceKVCache) -> None:
        self._inputs = inputs
        self._kv_cache = kv_cache
        self._arena: dict[int, Float32 | QuantizedRows] = {}
        self._num_rows = {
            Rows.TOKENS: len(inputs.token_ids),
            Rows.OUTPUTS: len(inputs.output_rows),
        }

    def load(self, buffer: Buffer) -> Float32:
        """The buffer's values; zeros if nothing was written to it yet."""
        held = self._arena.get(buffer.index)
        if held is None:
            return np.zeros((self._num_rows[buffer.rows], buffer.width), np.float32)
        return held.values() if isinstance(held, QuantizedRows) else held

    def store(self, buffer: Buffer, values: Float32) -> None:
        """Round to the buffer's dtype and keep."""
        if buffer.dtype is DType.Q8:
            self._arena[buffer.index] = quantize_rows(values)
        else:
            self._arena[buffer.index] = round_to(values, buffer.dtype)

    # ---- embedding and elementwise -------------------------------------------------------------

    def embed(self, table: ReferenceWeight, out: Buffer, scale: float) -> None:
        ids, given = self._inputs.token_ids, self._inputs.embeddings
        rows = table.rows(np.maximum(ids, 0)) * np.float32(scale)
        if given is not None:
            require(given.shape[1] == out.width, "embeddings are not as wide as the table's rows")
            rows[ids < 0] = given[-1 - ids[ids < 0]]
        self.store(out, rows)

    def rms_norm(self, x: Buffer, weight: Float32, out: Buffer, eps: float) -> None:
        self.store(out, elementwise.rms_norm(self.load(x), weight, eps))

    def rms_norm_add(self, x: Buffer, weight: Float32, out: Buffer, eps: float) -> None:
        self.store(out, self.load(out) + elementwise.rms_norm(self.load(x), weight, eps))

    def layer_norm(
        self, x: Buffer, weight: Float32, bias: Float32, out: Buffer, eps: float
    ) -> None:
        self.store(out, elementwise.layer_norm(self.load(x), weight, bias, eps))

    def add_positions(self, table: Float32, out: Buffer) -> None:
        rows = table.reshape(-1, out.width)
        require(bool(np.all(self._inputs.positions < len(rows))), "positions exceed their table")
        self.store(out, self.load(out) + rows[self._inputs.positions])

    def convert(self, x: Buffer, out: Buffer) -> None:
        self.store(out, self.load(x).copy())

    def activation(self, x: Buffer, out: Buffer, kind: Activation) -> None:
        self.store(out, elementwise.activation(self.load(x), kind))

    def gated_activation(self, x: Buffer, out: Buffer, kind: Activation) -> None:
        self.store(out, elementwise.gated_activation(self.load(x), kind))

    def gather_outputs(self, x: Buffer, out: Buffer) -> None:
        self.store(out, self.load(x)[self._inputs.output_rows])

    def soft_cap(self, x: Buffer, cap: float) -> None:
        self.store(x, elementwise.soft_cap(self.load(x), cap))

    # ---- linear --------------------------------------------------------------------------------

    def linear(
        self,
        x: Buffer,
        weight: ReferenceWeight,
        out: Buffer,
        bias: Float32 | None,
        accumulate: bool,
        first_column: int,
        scale: float,
    ) -> None:
        held = self._arena.get(x.index)
        if isinstance(weight.matrix, QuantizedMatrix):
            rows = held if isinstance(held, QuantizedRows) else quantize_rows(self.load(x))
            product = linear.linear_quantized(rows, weight.matrix)
        else:
            product = linear.linear_float(self.load(x), weight.matrix)
        if bias is not None:
            product = product + bias
        product = product * np.float32(scale)
        result = self.load(out).copy()
        columns = slice(first_column, first_column + product.shape[1])
        result[:, columns] = result[:, columns] + product if accumulate else product
        self.store(out, result)

    def adapt(
        self,
        x: Buffer,
        adapters: ReferenceAdapters,
        out: Buffer,
        first_column: int,
        scale: float,
    ) -> None:
        if self._inputs.adapters is None:
            return
        rows = slice(None) if x.rows is Rows.TOKENS else self._inputs.output_rows
        values = self.load(x)
        result = self.load(out).copy()
        columns = slice(first_column, first_column + adapters.num_outputs)
        for row, index in enumerate(self._inputs.adapters[rows]):
            added = adapters.added(int(index), values[row])
            if added is not None:
                result[row, columns] += added * np.float32(scale)
        self.store(out, result)

    # ---- attention -----------------------------------------------------------------------------

    def rope_table(self, out: Buffer, frequencies: Float32, scale: float) -> None:
        self.store(out, elementwise.rope_table(self._inputs.positions, frequencies, scale))

    def rotate_and_store(
        self,
        qkv: Buffer,
        rope: Buffer,
        layer: int,
        num_heads: int,
        q_norm: Float32 | None,
        k_norm: Float32 | None,
        eps: float,
    ) -> None:
        layout = self._kv_cache.layout
        heads = self._heads(qkv)
        last_key = num_heads + layout.num_kv_heads
        queries, keys, values = np.split(heads, [num_heads, last_key], axis=1)
        if q_norm is not None:
            queries = elementwise.rms_norm(queries, q_norm, eps)
        if k_norm is not None:
            keys = elementwise.rms_norm(keys, k_norm, eps)
        table = self.load(rope)
        queries, keys = elementwise.rotate(queries, table), elementwise.rotate(keys, table)
        for token, _, key_index, blocks in self._tokens(layer):
            block, offset = divmod(key_index, layout.block_size)
            self._kv_cache.write(layer, blocks[block], offset, keys[token], values[token])
        self.store(qkv, np.concatenate([queries, keys, values], axis=1).reshape(len(heads), -1))

    def attention(
        self,
        qkv: Buffer,
        out: Buffer,
        layer: int,
        num_heads: int,
        scale: float,
        soft_cap: float,
        window: int,
        is_causal: bool,
        mass: Buffer | None,
        adds_mass: bool,
    ) -> None:
        layout = self._kv_cache.layout
        parameters = attention.AttentionParameters(scale, soft_cap, window, is_causal)
        queries = self._heads(qkv)[:, :num_heads]
        result = np.zeros_like(queries)
        on_blocks = np.zeros((len(queries), 0 if mass is None else mass.width))
        for token, num_keys, query_index, blocks in self._tokens(layer):
            visible = attention.visible_keys(query_index, num_keys, window, is_causal)
            indices, keys, values = self._kv_cache.gather(layer, blocks, *visible)
            result[token], probabilities = attention.attend(
                queries[token], keys, values, parameters
            )
            if mass is not None:
                per_head = probabilities.reshape(layout.num_kv_heads, -1, len(indices)).sum(axis=1)
                view = on_blocks[token].reshape(layout.num_kv_heads, -1)
                for column, block in enumerate(indices // layout.block_size):
                    view[:, block] += per_head[:, column]
        self.store(out, result.reshape(len(queries), -1))
        if mass is not None:
            before = self.load(mass) if adds_mass else np.float32(0)
            self.store(mass, before + on_blocks.astype(np.float32))

    def _heads(self, qkv: Buffer) -> Float32:
        values = self.load(qkv)
        return values.reshape(len(values), -1, self._kv_cache.layout.head_size)

    def _tokens(self, layer: int) -> list[tuple[int, int, int, NDArray[np.int32]]]:
        """(token row, number of keys of its sequence, its key index, block table) of each token."""
        inputs = self._inputs
        tables = inputs.block_tables[self._kv_cache.layout.layer_groups[layer]]
        tokens = []
        for sequence, slot in enumerate(inputs.slots):
            start, end = inputs.query_starts[sequence : sequence + 2]
            first_key = int(inputs.key_starts[sequence])
            num_keys = first_key + int(end - start)
            tokens += [
                (int(start) + i, num_keys, first_key + i, tables[slot]) for i in range(end - start)
            ]
        return tokens
