// One thread's memory for attention, and the queries of a task in the order that score_tiles reads.
#pragma once

#include "attention/plan.h"
#include "attention/softmax.h"

namespace headrace::HR_ISA {

inline constexpr int64_t kFloatsPerLine = 16;
HR_INLINE int64_t aligned(int64_t floats) {
  return (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

// One thread's memory. Rows r of a task have state r; a register tile works in scores and chunk_*.
struct Workspace {
  float* queries;  // per register tile of R rows [D, R]
  float* state_max;
  float* state_sum;
  float* state_values;  // [rows, padded]
  float* scores;        // [kTileRows, kScoreStride]
  float* chunk_max;
  float* chunk_sum;
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

HR_INLINE int64_t workspace_floats(const Op& op) {
  const Geometry& g = op.geometry;
  return aligned(int64_t{g.max_rows} * g.size) + 2 * aligned(g.max_rows) +
         int64_t{g.max_rows} * g.padded + int64_t{kTileRows} * kScoreStride +
         2 * aligned(kTileRows) + int64_t{kTileRows} * g.padded +
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
  w.queries = take(int64_t{g.max_rows} * g.size);
  w.state_max = take(g.max_rows);
  w.state_sum = take(g.max_rows);
  w.state_values = take(int64_t{g.max_rows} * g.padded);
  w.scores = take(int64_t{kTileRows} * kScoreStride);
  w.chunk_max = take(kTileRows);
  w.chunk_sum = take(kTileRows);
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

HR_INLINE const float* query_of(const Op& op, const Task& task, int row) {
  const int heads = op.geometry.heads_per_kv;
  const int head = task.kv_head * heads + row % heads;
  return op.args.qkv.row(task.first_token + row / heads) + int64_t{head} * op.geometry.size;
}

HR_INLINE void pack_queries(const Op& op, const Task& task, RowTiles tiles, float* out) {
  for (int i = 0; i < tiles.count; ++i) {
    const int begin = tiles.begin(i), count = tiles.begin(i + 1) - begin;
    for (int r = 0; r < count; ++r) {
      const float* query = query_of(op, task, begin + r);
      for (int d = 0; d < op.geometry.size; ++d) out[d * count + r] = query[d];
    }
    out += int64_t{count} * op.geometry.size;
  }
}

}  // namespace headrace::HR_ISA
