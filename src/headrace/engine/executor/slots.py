"""What the executor remembers per slot between plans: block tables, history, sampling parameters."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.sampling import SamplingParams
from headrace.core.step import BlockWrite, SequenceStart
from headrace.engine.executor.dry import DrySlots
from headrace.engine.executor.embeddings import SlotEmbeddings
from headrace.engine.executor.thinking import ThinkingLimits


class SlotTable:
    """Arrays with one row per slot. Written by plans, read by index when a step is built.

    Large arrays are zeroed lazily by the operating system, so a slot costs memory when it is used.
    """

    def __init__(self, max_num_seqs: int, max_context: int, max_blocks: tuple[int, ...]) -> None:
        self.history: NDArray[np.int32] = np.zeros((max_num_seqs, max_context + 1), np.int32)
        self.block_tables: tuple[NDArray[np.int32], ...] = tuple(
            np.full((max_num_seqs, blocks), -1, np.int32) for blocks in max_blocks
        )
        self.num_prompt: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.seeds: NDArray[np.uint64] = np.zeros(max_num_seqs, np.uint64)
        self.adapters: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.has_adapters = False
        """Some sequence ran, or runs, with an adapter: most engines never look further."""
        self.embeddings = SlotEmbeddings()
        self.version = 0
        """Changes when a slot is taken or left: what was gathered from the arrays is stale then."""
        self.temperature: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.top_k: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.top_p: NDArray[np.float32] = np.ones(max_num_seqs, np.float32)
        self.min_p: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.presence_penalty: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.frequency_penalty: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.repetition_penalty: NDArray[np.float32] = np.ones(max_num_seqs, np.float32)
        self.typical_p: NDArray[np.float32] = np.ones(max_num_seqs, np.float32)
        self.top_n_sigma: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.xtc_probability: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.xtc_threshold: NDArray[np.float32] = np.zeros(max_num_seqs, np.float32)
        self.num_logprobs: NDArray[np.int32] = np.full(max_num_seqs, -1, np.int32)
        self.post_sampling: NDArray[np.bool_] = np.zeros(max_num_seqs, np.bool_)
        self.num_prompt_logprobs: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.min_tokens: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.thinking = ThinkingLimits()
        self.dry = DrySlots()
        self._biases: dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]] = {}
        self._masks: dict[int, NDArray[np.int32]] = {}

    def start(self, start: SequenceStart) -> None:
        """A sequence takes its slot; whatever an earlier one left is overwritten."""
        slot, params = start.slot, start.params
        self.version += 1
        self.embeddings.start(start)
        self.history[slot, : len(start.token_ids)] = start.token_ids
        self.num_prompt[slot] = start.num_prompt_tokens
        self.seeds[slot] = start.seed
        self.adapters[slot] = start.adapter_index
        self.has_adapters = self.has_adapters or start.adapter_index != 0
        for table in self.block_tables:
            table[slot] = -1
        self._set_params(slot, params)
        self.thinking.start(start)
        self.dry.start(start)
        self._masks.pop(slot, None)
        # With a grammar, which is stronger than a minimum length, the matcher masks them.
        if params.min_tokens > 0 and start.mask_token_ids and start.grammar is None:
            self._masks[slot] = np.array(start.mask_token_ids, np.int32)

    def end(self, slot: int) -> None:
        """The slot is free. Only what costs memory outside the arrays is dropped."""
        self.version += 1
        self._biases.pop(slot, None)
        self._masks.pop(slot, None)
        self.thinking.end(slot)
        self.embeddings.end(slot)
        self.dry.end(slot)

    @property
    def has_biases(self) -> bool:
        """Some slot has a logit bias or a minimum length."""
        return bool(self._biases or self._masks)

    def write_blocks(self, write: BlockWrite) -> None:
        """Entries of one block table change."""
        end = write.first + len(write.block_ids)
        self.block_tables[write.group][write.slot, write.first : end] = write.block_ids

    def biases(
        self, slots: list[int], output_positions: list[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """(starts, ids, values) of the rows' logit biases; masked ids have -inf."""
        starts, no_ids, no_values = no_biases(len(slots))
        ids: list[NDArray[np.int32]] = []
        values: list[NDArray[np.float32]] = []
        for row, (slot, position) in enumerate(zip(slots, output_positions, strict=True)):
            count = 0
            if slot in self._biases:
                bias_ids, bias_values = self._biases[slot]
                ids.append(bias_ids)
                values.append(bias_values)
                count += len(bias_ids)
            if slot in self._masks and position < self.min_tokens[slot]:
                mask = self._masks[slot]
                ids.append(mask)
                values.append(np.full(len(mask), -np.inf, np.float32))
                count += len(mask)
            starts[row + 1] = starts[row] + count
        if not ids:
            return starts, no_ids, no_values
        return starts, np.concatenate(ids), np.concatenate(values)

    def _set_params(self, slot: int, params: SamplingParams) -> None:
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.presence_penalty[slot] = params.presence_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.repetition_penalty[slot] = params.repetition_penalty
        self.typical_p[slot] = params.typical_p
        self.top_n_sigma[slot] = params.top_n_sigma
        self.xtc_probability[slot] = params.xtc_probability
        self.xtc_threshold[slot] = params.xtc_threshold
        self.num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self.post_sampling[slot] = params.post_sampling_probs
        self.num_prompt_logprobs[slot] = params.prompt_logprobs or 0
        self.min_tokens[slot] = params.min_tokens
        self._biases.pop(slot, None)
        if params.logit_bias:
            self._biases[slot] = (
                np.array(list(params.logit_bias), np.int32),
                np.array(list(params.logit_bias.values()), np.float32),
            )


def no_biases(
    num_rows: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    """`SlotTable.biases` of rows that have none."""
    return np.zeros(num_rows + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
