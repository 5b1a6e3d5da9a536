// Low-rank adapters of one linear, as the op `adapt` reads them; see kernels/formats.py: LowRank.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// The most adapters that a table may have.
inline constexpr int32_t kMostAdapters = 256;

// A matrix in panels of sixteen rows: element (r, c) is at [r / 16][c][r % 16], rows padded with
// zeros.
struct AdapterMatrix {
  const std::byte* data = nullptr;  // 64-byte aligned
  bool is_bf16 = false;             // else float32
};

struct AdapterEntry {
  AdapterMatrix down;  // [rank, K]
  AdapterMatrix up;    // [N, rank]
  int32_t rank = 0;    // 0: this adapter leaves the linear alone
};

struct AdapterTable {
  const AdapterEntry* entries = nullptr;  // [capacity]; entry i is adapter i + 1 of a step
  int32_t capacity = 0;
  int64_t num_outputs = 0;  // N
  int64_t num_inputs = 0;   // K
};

}  // namespace headrace
