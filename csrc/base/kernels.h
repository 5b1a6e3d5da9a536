// The interface between a recorded program and the kernels: one struct of arguments per op of
// kernels/ops.py, and a table of functions per instruction set.
//
// To implement op `foo`, define `void foo(const FooArgs&, OpContext&)` in `namespace
// headrace::HR_ISA` in any source of gemm/, attention/, elementwise/ or sampling/.
// base/kernel_table.cc collects them by name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/adapters.h"
#include "base/kv_cache.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/types.h"

namespace headrace {

// Some tokens of a step.
struct TokenRange {
  int32_t first, count;
};

// What an op may use beside its arguments.
class OpContext {
 public:
  // For all tokens of the step.
  OpContext(const StepInputs& step_inputs, const KVCache& cache, ThreadPool& threads,
            Mapping& scratch)
      : OpContext(step_inputs, cache, threads, scratch, {0, step_inputs.num_tokens}) {}
  // For some: row 0 of every buffer with a row per token is the row of the first of them.
  OpContext(const StepInputs& step_inputs, const KVCache& cache, ThreadPool& threads,
            Mapping& scratch, TokenRange range)
      : inputs(step_inputs), kv(cache), pool(threads), tokens(range), scratch_(scratch) {}

  const StepInputs& inputs;
  const KVCache& kv;  // kernels write through keys() and values()
  ThreadPool& pool;
  const TokenRange tokens;

  HR_ALWAYS_INLINE int rows(Rows kind) const {
    return kind == Rows::kTokens ? tokens.count : inputs.num_outputs;
  }

  // Memory for the length of one op, 64-byte aligned, contents unspecified. Call it once, before
  // parallel_for; it grows to the largest demand and then stays. Throws std::bad_alloc.
  std::byte* scratch(size_t bytes);

 private:
  Mapping& scratch_;
};

struct EmbedArgs {
  PackedWeight table;
  Buffer out;
  float scale;
};
struct RmsNormArgs {  // rms_norm
  Buffer x;
  const float* weight;
  Buffer out;
  float eps;
};
struct RmsNormAddArgs {
  Buffer x;
  const float* weight;
  Buffer out;
  float eps;
};
struct LayerNormArgs {
  Buffer x;
  const float* weight;
  const float* bias;
  Buffer out;  // may be x
  float eps;
};
struct AddPositionsArgs {
  const float* table;  // [num_positions, out.width], rows without padding
  int64_t num_positions;
  Buffer out;
};
struct ConvertArgs {
  Buffer x, out;
};
enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu };
struct ActivationArgs {
  Buffer x, out;
  Activation kind;
};
struct GatedActivationArgs {
  Buffer x, out;
  Activation kind;
};
struct GatherOutputsArgs {
  Buffer x, out;
};
struct SoftCapArgs {
  Buffer x;
  float cap;
};
struct LinearArgs {
  Buffer x;
  PackedWeight weight;
  Buffer out;
  const float* bias;  // or null
  bool accumulate;
  int32_t first_column;
  float scale;
};
struct AdaptArgs {
  Buffer x;
  const AdapterTable* adapters;
  Buffer out;
  int32_t first_column;
  float scale;
};
struct RopeTableArgs {
  Buffer out;
  const float* frequencies;  // [out.width / 2]
  float scale;
};
struct RotateAndStoreArgs {
  Buffer qkv, rope;
  int32_t layer, num_heads;
  const float* q_norm;  // [D] or null
  const float* k_norm;
  float eps;
};
struct AttentionArgs {
  Buffer qkv, out;
  int32_t layer, num_heads;
  float scale, soft_cap;
  int32_t window;
  bool is_causal;
  Buffer mass;             // data is null without
  bool adds_mass = false;  // to what the buffer holds
};

// kernels/ops.py: SampleBatch and SampleOutput. `logits` rows may be used as scratch. Bounds were
// checked.
struct SampleArgs {
  float* logits;
  int64_t logits_stride;  // in floats
  int32_t num_rows, vocab_size;
  const float *temperature, *top_p, *min_p, *presence_penalty, *frequency_penalty,
      *repetition_penalty, *typical_p, *top_n_sigma, *xtc_probability, *xtc_threshold;
  const int32_t* top_k;
  const uint64_t* seeds;
  const int64_t* output_positions;
  const int32_t *num_logprobs, *slots;
  const bool* post_sampling;
  const int32_t* history;
  int64_t history_stride;  // in elements
  const int32_t *history_lengths, *num_prompt, *bias_starts, *bias_ids;
  const float* bias_values;
  // Penalties for repetition; null where no row has them, 0 in rows that have none.
  const float *dry_multiplier, *dry_base;
  const int32_t *dry_allowed_length, *dry_window, *dry_sets;
  const uint32_t* dry_breakers;  // [sets, dry_breakers_stride]
  int64_t dry_breakers_stride;
  const int32_t* dry_words;  // [sets, dry_words_stride]
  int64_t dry_words_stride;
  const uint32_t* allowed;  // [R, allowed_stride] or null
  int64_t allowed_stride;   // in elements
  int32_t* token_ids;       // [R], and so on
  bool* is_finite;
  float* logprobs;
  int32_t* ranks;
  int32_t* top_ids;  // [R, num_top]
  float* top_logprobs;
  int32_t num_top;
};

struct KernelTable {
  void (*embed)(const EmbedArgs&, OpContext&);
  void (*rms_norm)(const RmsNormArgs&, OpContext&);
  void (*rms_norm_add)(const RmsNormAddArgs&, OpContext&);
  void (*layer_norm)(const LayerNormArgs&, OpContext&);
  void (*add_positions)(const AddPositionsArgs&, OpContext&);
  void (*convert)(const ConvertArgs&, OpContext&);
  void (*activation)(const ActivationArgs&, OpContext&);
  void (*gated_activation)(const GatedActivationArgs&, OpContext&);
  void (*gather_outputs)(const GatherOutputsArgs&, OpContext&);
  void (*soft_cap)(const SoftCapArgs&, OpContext&);
  void (*linear)(const LinearArgs&, OpContext&);
  void (*adapt)(const AdaptArgs&, OpContext&);
  void (*rope_table)(const RopeTableArgs&, OpContext&);
  void (*rotate_and_store)(const RotateAndStoreArgs&, OpContext&);
  void (*attention)(const AttentionArgs&, OpContext&);
  void (*sample)(const SampleArgs&, ThreadPool&, Mapping& scratch);
  // Reports on `token_ids`, which are given; reads of the inputs only logits and num_logprobs.
  void (*score)(const SampleArgs&, ThreadPool&, Mapping& scratch);
};

namespace generic {
extern const KernelTable kKernels;
}
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
namespace neon {
extern const KernelTable kKernels;
}

}  // namespace headrace
