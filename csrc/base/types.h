// The words that every kernel shares: element types, buffers, a step's numbers, the KV cache's
// geometry.
//
// Legend: T tokens of the step, R rows whose logits are wanted, S sequences, H query heads, G KV
// heads, D head size, P block size, V vocabulary, N outputs and K inputs of a linear.
#pragma once

#include <cstddef>
#include <cstdint>

// For functions in headers that kernel sources share: an out-of-line copy compiled with AVX-512
// flags must not be linked into code for other machines.
#define HR_ALWAYS_INLINE inline __attribute__((always_inline))

namespace headrace {

// kInt8 and kInt16 are of keys and values only: codes with one scale per token and head.
enum class DType : uint8_t { kF32, kBF16, kF16, kQ8, kInt8, kInt16 };

// How many rows a buffer has in a step: T or R.
enum class Rows : uint8_t { kTokens, kOutputs };

enum class WeightFormat : uint8_t { kW4G32, kW8G32, kW8G16, kBF16, kF16, kF32 };

inline constexpr int kGroup = 32;      // inputs per activation scale
inline constexpr int kPanel = 16;      // outputs per weight panel; also the lanes of a Vec
inline constexpr int kAlignment = 64;  // of every buffer and of every row

// One group of a row of dtype Q8: x[i] is about scale * codes[i]. Rows are arrays of these, K
// rounded up to 32, padding codes zero. The sums save the kernels from adding up codes again.
struct Q8Group {
  int8_t codes[kGroup];
  float scale;           // max|x| / 127, 0 for a group of zeros
  float scaled_sum;      // scale * float(sum of codes), for weights with minimums
  int32_t half_sums[2];  // of codes 0..15 and 16..31, for weights with an offset
};
static_assert(sizeof(Q8Group) == 48);

// Rows past the last one that may be read (never for a result), so that kernels can work in whole
// tiles.
inline constexpr int kSlackRows = 16;

// A buffer of the arena, resolved: `stride` bytes from row to row (a multiple of 64).
struct Buffer {
  std::byte* data = nullptr;
  int64_t stride = 0;
  int32_t width = 0;
  DType dtype = DType::kF32;
  Rows rows = Rows::kTokens;

  template <typename T = float>
  HR_ALWAYS_INLINE T* row(int64_t index) const {
    return reinterpret_cast<T*>(data + index * stride);
  }
};

// A weight in the panel layout of kernels/formats.py. `data` is 64-byte aligned.
struct PackedWeight {
  const std::byte* data = nullptr;
  int64_t num_outputs = 0;  // N
  int64_t num_inputs = 0;   // K
  WeightFormat format = WeightFormat::kF32;
  bool has_mins = false;
  int32_t offset = 0;
};

// kernels/ops.py: StepInputs. Bounds were checked before a kernel sees them.
struct StepInputs {
  int32_t num_tokens = 0;                        // T
  int32_t num_outputs = 0;                       // R
  int32_t num_sequences = 0;                     // S
  const int32_t* token_ids = nullptr;            // [T]; -1 - e is row e of `embeddings`
  const float* embeddings = nullptr;             // [E, C] or null: no token is given as a vector
  const int32_t* positions = nullptr;            // [T]
  const int32_t* query_starts = nullptr;         // [S + 1]
  const int32_t* key_starts = nullptr;           // [S]
  const int32_t* slots = nullptr;                // [S]
  const int32_t* output_rows = nullptr;          // [R]
  const int32_t* adapters = nullptr;             // [T] or null: no row has one
  const int32_t* const* block_tables = nullptr;  // per group, [slots, table_widths[group]]
  const int64_t* table_widths = nullptr;         // per group, blocks in a row of its table
  int32_t num_groups = 0;
};

}  // namespace headrace
