// The penalty for going on with a repetition (DRY). src/headrace/kernels/reference/dry.py specifies
// it.
#pragma once

#include "base/kernels.h"
#include "sampling/counts.h"

namespace headrace::HR_ISA {

// As in the reference: a logit stays finite.
inline constexpr double kLargestDryPenalty = 1e30;

HR_INLINE bool has_dry(const SampleArgs& args, int row) {
  return args.dry_multiplier != nullptr && args.dry_multiplier[row] != 0.0f;
}

// What a row's repetitions never reach across.
struct Breakers {
  const uint32_t* tokens;  // a bit per token
  const int32_t* words;    // [num_words]: a length, so many ids, and so on; 0 ends
  int64_t num_words;
  int vocab_size;

  HR_INLINE bool has(int32_t id) const {
    return !is_token(id, vocab_size) || (tokens[id >> 5] >> (id & 31) & 1u) != 0;
  }
  // Whether one of several tokens ends at the end of these.
  bool end(const int32_t* history, int length) const {
    for (int64_t i = 0; i < num_words && words[i] > 0; i += 1 + words[i]) {
      const int size = words[i];
      if (size <= length && std::memcmp(words + i + 1, history + length - size,
                                        sizeof(int32_t) * static_cast<size_t>(size)) == 0) {
        return true;
      }
    }
    return false;
  }
  // Tokens behind the last breaker.
  int reach(const int32_t* history, int length) const {
    int count = 0;
    while (count < length && !has(history[length - 1 - count]) && !end(history, length - count)) {
      ++count;
    }
    return count;
  }
};

// matches[i], 0 < i < length: how many tokens before place length - i equal the last ones. The
// Z-algorithm (Gusfield, Algorithms on Strings, Trees and Sequences, 1997, section 1.4) over the
// history read backwards: linear, however repetitive it is.
static void find_matches(const int32_t* history, int length, int32_t* matches) {
  const int32_t* last = history + length - 1;
  int begin = 0, end = 0;  // the match that reaches furthest back
  for (int i = 1; i < length; ++i) {
    int count = 0;
    if (i < end) count = matches[i - begin] < end - i ? matches[i - begin] : end - i;
    while (i + count < length && last[-count] == last[-(i + count)]) ++count;
    matches[i] = count;
    if (i + count > end) begin = i, end = i + count;
  }
}

// multiplier * base^exponent; by squaring, the products of the reference in the same order.
HR_INLINE float dry_penalty(double multiplier, double base, int exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) power *= base;
  }
  const double penalty = multiplier * power;
  return static_cast<float>(penalty < kLargestDryPenalty ? penalty : kLargestDryPenalty);
}

// `matches` has an entry for each token of the history.
static void penalise_repetition(const SampleArgs& args, int row, float* logits,
                                const Counts& counts, int32_t* matches) {
  const int known = args.history_lengths[row], window = args.dry_window[row];
  const int length = window < known ? window : known;
  const int32_t* history = args.history + args.slots[row] * args.history_stride + (known - length);
  const int64_t set = args.dry_sets[row];
  const Breakers breakers{args.dry_breakers + set * args.dry_breakers_stride,
                          args.dry_words + set * args.dry_words_stride, args.dry_words_stride,
                          args.vocab_size};
  const int least = args.dry_allowed_length[row], reach = breakers.reach(history, length);
  if (reach < least) return;
  find_matches(history, length, matches);
  counts.clear(args.vocab_size);
  for (int i = 1; i < length; ++i) {
    const int32_t id = history[length - i];
    if (matches[i] < least || breakers.has(id)) continue;
    const int count = matches[i] < reach ? matches[i] : reach;
    if (counts.is_first(id) || counts.times[id] < count) counts.times[id] = count;
  }
  const double multiplier = double{args.dry_multiplier[row]}, base = double{args.dry_base[row]};
  counts.clear(args.vocab_size);
  for (int i = 1; i < length; ++i) {
    const int32_t id = history[length - i];
    if (matches[i] < least || breakers.has(id) || !counts.is_first(id)) continue;
    logits[id] -= dry_penalty(multiplier, base, counts.times[id] - least);
  }
}

}  // namespace headrace::HR_ISA
