// One thread's memory for attention, and the queries of a task in the order that score_tiles reads.
#pragma once

#include "attention/plan.h"
#include "attention/softmax.h"
#include "attention/store.h"

namespace headrace::HR_ISA {

inline constexpr int64_t kFloatsPerLine = 16;
HR_INLINE int64_t aligned(int64_t floats) {
  return (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

// One thread's memory. Rows r of a task have state r; a register tile works in scores and chunk_*.
struct Workspace {
  std::byte* queries;  // per register tile of R rows [steps, R] in the format's type
  QueryScale* scales;  // [rows]
  float* state_max;
  float* state_sum;
  float* state_values;  // [rows, padded]
  float* scores;        // [kTileRows, kScoreStride]
  float* chunk_values;  // [kTileRows, padded]
  float* block_sums;    // [rows, blocks], with mass
  float* chunk_maxima;  // [rows, chunks], with mass
};

struct Op {
  const AttentionArgs& args;
  const KVCache& kv;
  Geometry geometry;
  Scoring scoring;
  int64_t num_blocks;  // in a row of the mass; 0 without
  int64_t num_chunks;  // of that many blocks
};

// Of one row, in any format: steps of up to four elements.
HR_INLINE int64_t query_floats(const Geometry& g) { return (g.size + 3) / 4 * 4; }

HR_INLINE int64_t workspace_floats(const Op& op) {
  const Geometry& g = op.geometry;
  return aligned(int64_t{g.max_rows} * query_floats(g)) + aligned(2 * int64_t{g.max_rows}) +
         2 * aligned(g.max_rows) + int64_t{g.max_rows} * g.padded +
         int64_t{kTileRows} * kScoreStride + int64_t{kTileRows} * g.padded +
         aligned(g.max_rows * op.num_blocks) + aligned(g.max_rows * op.num_chunks);
}

HR_INLINE Workspace workspace_at(const Op& op, float* memory) {
  const Geometry& g = op.geometry;
  const auto take = [&](int64_t floats) {
    float* taken = memory;
    memory += aligned(floats);
    return taken;
  };
  Workspace w;
  w.queries = reinterpret_cast<std::byte*>(take(int64_t{g.max_rows} * query_floats(g)));
  w.scales = reinterpret_cast<QueryScale*>(take(2 * int64_t{g.max_rows}));
  w.state_max = take(g.max_rows);
  w.state_sum = take(g.max_rows);
  w.state_values = take(int64_t{g.max_rows} * g.padded);
  w.scores = take(int64_t{kTileRows} * kScoreStride);
  w.chunk_values = take(int64_t{kTileRows} * g.padded);
  w.block_sums = take(g.max_rows * op.num_blocks);
  w.chunk_maxima = take(g.max_rows * op.num_chunks);
  return w;
}

// Rows of a task in register tiles of nearly equal height: tile i has rows [i n / k, (i + 1) n /
// k).
struct RowTiles {
  int num_rows, count;
  HR_INLINE int begin(int i) const { return i * num_rows / count; }
};

HR_INLINE RowTiles row_tiles(int num_rows) {
  return {num_rows, (num_rows + kTileRows - 1) / kTileRows};
}

HR_INLINE const float* query_of(const Op& op, const Task& task, int kv_head, int row) {
  const int heads = op.geometry.heads_per_kv;
  const int head = kv_head * heads + row % heads;
  return op.args.qkv.row(task.first_token + row / heads) + int64_t{head} * op.geometry.size;
}

// Rows of a token lie together, those of the next one a row of the step further.
inline constexpr int kQueriesAhead = 6;

// Codes of 16 bits of a query, padded with zeros to a multiple of 16; returns their scale. Their
// norm is 32752, so that products with keys fit 32 bits (do_keys_fit).
HR_INLINE float quantize_query(const float* x, int size, int16_t* codes) {
  constexpr float kNorm = 32752.0f;
  const auto part = [&](int i) {
    const int rest = size - i;
    return load(x + i, first_lanes(rest < kLanes ? rest : kLanes));
  };
  Vec largest = zero(), squares = zero();
  for (int i = 0; i < size; i += kLanes) largest = max_magnitude(largest, part(i));
  const float magnitude = reduce_max_magnitude(largest);
  const bool is_sound = has_step(magnitude);
  const Vec relative = splat(is_sound ? 1.0f / magnitude : 0.0f);
  for (int i = 0; i < size && is_sound; i += kLanes) {
    const Vec share = part(i) * relative;
    squares = fma(share, share, squares);
  }
  float norm[kLanes];
  store(norm, sqrt(splat(reduce_add(squares))) * splat(magnitude));
  const Vec inverse = splat(kNorm / norm[0]);
  for (int i = 0; i < size; i += kLanes) {
    store_int16(codes + i, is_sound ? part(i) * inverse : zero());
  }
  return is_sound ? norm[0] / kNorm : missing_step(magnitude);
}

// One query into its places in [steps, count]; elements past D are zeros.
template <typename F>
HR_INLINE QueryScale pack_query(const float* query, int size, int count, typename F::Query* out) {
  if constexpr (F::kIsExact && F::kKeyStep == 2) {
    alignas(64) int16_t codes[kMaxHeadSize];
    const float scale = quantize_query(query, size, codes);
    for (int i = 0; i * F::kKeyStep < size; ++i) {
      std::memcpy(out + i * count, codes + i * F::kKeyStep, sizeof(typename F::Query));
    }
    return {scale, 0};
  } else if constexpr (F::kIsExact) {
    alignas(64) uint8_t codes[kMaxHeadSize];
    const float scale = quantize_head(query, size, 0, codes);
    int32_t sum = 0;
    for (int d = 0; d < size; ++d) sum += static_cast<int8_t>(codes[d]);
    for (int i = 0; i * F::kKeyStep < size; ++i) {
      std::memcpy(out + i * count, codes + i * F::kKeyStep, sizeof(typename F::Query));
    }
    return {scale, -128 * sum};  // key codes are biased by 128
  } else if constexpr (sizeof(typename F::Query) == F::kKeyStep * sizeof(uint16_t)) {
    alignas(64) uint16_t rounded[kMaxHeadSize + 1];
    store_row(query, size, DType::kBF16, reinterpret_cast<std::byte*>(rounded));
    rounded[size] = 0;
    for (int i = 0; i * F::kKeyStep < size; ++i) out[i * count] = word_at(rounded + 2 * i);
    return {};
  } else {
    constexpr auto kBytes = sizeof(typename F::Query);
    for (int i = 0; i < size / F::kKeyStep; ++i) {
      std::memcpy(out + i * count, query + i * F::kKeyStep, kBytes);
    }
    if (size % F::kKeyStep != 0) {
      const float last[2] = {query[size - 1], 0.0f};
      std::memcpy(out + size / F::kKeyStep * count, last, kBytes);
    }
    return {};
  }
}

template <typename F>
HR_INLINE int query_steps(const Geometry& g) {
  return (g.size + F::kKeyStep - 1) / F::kKeyStep;
}

template <typename F>
HR_INLINE void pack_queries(const Op& op, const Task& task, int kv_head, RowTiles tiles,
                            const Workspace& w) {
  auto* out = reinterpret_cast<typename F::Query*>(w.queries);
  const int steps = query_steps<F>(op.geometry);
  for (int i = 0; i < tiles.count; ++i) {
    const int begin = tiles.begin(i), count = tiles.begin(i + 1) - begin;
    for (int r = 0; r < count; ++r) {
      const float* query = query_of(op, task, kv_head, begin + r);
      if (begin + r + kQueriesAhead < tiles.num_rows) {
        const float* ahead = query_of(op, task, kv_head, begin + r + kQueriesAhead);
        for (int d = 0; d < op.geometry.size; d += kFloatsPerLine) __builtin_prefetch(ahead + d);
      }
      w.scales[begin + r] = pack_query<F>(query, op.geometry.size, count, out + r);
    }
    out += int64_t{count} * steps;
  }
}

}  // namespace headrace::HR_ISA
