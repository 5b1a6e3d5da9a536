// Biases, masks and penalties: what changes a row of logits before a token is drawn.
#pragma once

#include <cstdint>

#include "base/kernels.h"
#include "base/simd.h"
#include "sampling/counts.h"
#include "sampling/dry.h"

namespace headrace::HR_ISA {

HR_INLINE bool has_penalties(const SampleArgs& args, int row) {
  return args.presence_penalty[row] != 0.0f || args.frequency_penalty[row] != 0.0f ||
         args.repetition_penalty[row] != 1.0f;
}

HR_INLINE bool has_edits(const SampleArgs& args, int row) {
  return args.allowed != nullptr || args.bias_starts[row + 1] > args.bias_starts[row] ||
         has_penalties(args, row) || has_dry(args, row);
}

HR_INLINE void mask_disallowed(const uint32_t* allowed, float* logits, int size) {
  for (int first = 0; first < size; first += 32) {
    uint32_t masked = ~allowed[first / 32];
    if (size - first < 32) masked &= (1u << (size - first)) - 1u;
    for (; masked != 0; masked &= masked - 1) {
      logits[first + __builtin_ctz(masked)] = -__builtin_inff();
    }
  }
}

static void penalise(const SampleArgs& args, int row, float* logits, const Counts& counts) {
  const int size = args.vocab_size;
  const int32_t* history = args.history + args.slots[row] * args.history_stride;
  const int length = args.history_lengths[row];
  const float repetition = args.repetition_penalty[row];
  if (repetition != 1.0f) {
    counts.clear(size);
    for (int i = 0; i < length; ++i) {
      const int32_t id = history[i];
      if (!is_token(id, size) || !counts.is_first(id)) continue;
      logits[id] = logits[id] > 0.0f ? logits[id] / repetition : logits[id] * repetition;
    }
  }
  const float presence = args.presence_penalty[row], frequency = args.frequency_penalty[row];
  if (presence == 0.0f && frequency == 0.0f) return;
  counts.clear(size);
  for (int i = args.num_prompt[row]; i < length; ++i) {
    if (!is_token(history[i], size)) continue;
    if (counts.is_first(history[i])) counts.times[history[i]] = 0;
    ++counts.times[history[i]];
  }
  counts.clear(size);
  for (int i = args.num_prompt[row]; i < length; ++i) {
    const int32_t id = history[i];
    if (!is_token(id, size) || !counts.is_first(id)) continue;
    logits[id] -= presence + frequency * static_cast<float>(counts.times[id]);
  }
}

HR_INLINE void edit_logits(const SampleArgs& args, int row, float* logits, const Counts& counts,
                           int32_t* matches) {
  for (int i = args.bias_starts[row]; i < args.bias_starts[row + 1]; ++i) {
    if (is_token(args.bias_ids[i], args.vocab_size))
      logits[args.bias_ids[i]] += args.bias_values[i];
  }
  if (args.allowed != nullptr) {
    mask_disallowed(args.allowed + row * args.allowed_stride, logits, args.vocab_size);
  }
  if (has_penalties(args, row)) penalise(args, row, logits, counts);
  if (has_dry(args, row)) penalise_repetition(args, row, logits, counts, matches);
}

}  // namespace headrace::HR_ISA
