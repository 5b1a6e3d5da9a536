// One chunk of keys for the rows of a task: scores, softmax, weighted values, merge.
#pragma once

#include "attention/workspace.h"

namespace headrace::HR_ISA {

HR_INLINE RowView view_row(const Op& op, const Task& task, int row, const TileList& list) {
  RowView view;
  view.visible =
      visible_keys(op.args, task.first_key + row / op.geometry.heads_per_kv, task.num_keys);
  view.begin = 0;
  view.end = list.count;
  const KeyTile* tiles = list.tiles;
  while (view.begin < view.end && tiles[view.begin].first + kKeyTile <= view.visible.begin)
    ++view.begin;
  while (view.end > view.begin && tiles[view.end - 1].first >= view.visible.end) --view.end;
  return view;
}

// A chunk that is being worked on.
struct ChunkJob {
  const TileList& list;
  const TileList* upcoming;  // whose keys are needed next; null if they are here already
  int64_t index;             // of the chunk in the sequence
  int kv_head;
  bool is_first_use;  // of its keys and values in this task
};

// Rows that see different keys: what all see by whole units together, the rest row by row, so that
// each row's chain is what it would be alone.
template <typename F, int R>
HR_INLINE void weigh_apart(WeighJob job, const RowView* views, const float* factors) {
  KeyRange common = views[0].visible;
  for (int r = 1; r < R; ++r) {
    const KeyRange other = views[r].visible;
    common.begin = other.begin > common.begin ? other.begin : common.begin;
    common.end = other.end < common.end ? other.end : common.end;
  }
  common.begin = (common.begin + F::kUnit - 1) / F::kUnit * F::kUnit;
  common.end = common.end / F::kUnit * F::kUnit;
  if (common.end < common.begin) common.end = common.begin;
  const auto weigh_part = [&]<int N>(int row, int begin, int end, KeyRange keys) {
    WeighJob part = job;
    part.weights += row * kScoreStride;
    part.out += row * job.stride;
    part.visible = keys;
    part.begin = begin;
    part.end = end;
    while (part.begin < part.end && job.tiles[part.begin].first + kKeyTile <= keys.begin)
      ++part.begin;
    while (part.end > part.begin && job.tiles[part.end - 1].first >= keys.end) --part.end;
    if (keys.begin < keys.end && part.begin < part.end) weigh_rows<F, N>(part, factors);
  };
  for (int r = 0; r < R; ++r) {
    const KeyRange seen = views[r].visible;
    const int64_t end = seen.end < common.begin ? seen.end : common.begin;
    weigh_part.template operator()<1>(r, views[r].begin, views[r].end, {seen.begin, end});
  }
  weigh_part.template operator()<R>(0, job.begin, job.end, common);
  job.num_upcoming = 0;
  for (int r = 0; r < R; ++r) {
    const KeyRange seen = views[r].visible;
    const int64_t begin = seen.begin > common.end ? seen.begin : common.end;
    weigh_part.template operator()<1>(r, views[r].begin, views[r].end, {begin, seen.end});
  }
}

// chunk_values = weighted values of R rows.
template <typename F, int R>
HR_INLINE void weigh_chunk(const WeighJob& job, const RowView* views, const float* factors) {
  if constexpr (F::kIsExact) {
    weigh_rows<F, R>(job, factors);
  } else {
    for (int i = 0; i < R * job.stride; i += kLanes) store(job.out + i, zero());
    bool is_uniform = true;
    for (int r = 1; r < R; ++r) {
      is_uniform &= views[r].visible.begin == views[0].visible.begin &&
                    views[r].visible.end == views[0].visible.end;
    }
    if (is_uniform) {
      weigh_rows<F, R>(job, factors);
    } else {
      weigh_apart<F, R>(job, views, factors);
    }
  }
}

// Blocks that the caller's mass has no column for are left out.
HR_INLINE void note_mass(const Op& op, const ChunkJob& chunk, const RowView& view,
                         const float* tile_sums, float chunk_max, int row, const Workspace& w) {
  const int block_size = op.kv.layout().block_size;
  float* sums = w.block_sums + row * op.num_blocks;
  for (int j = view.begin; j < view.end; ++j) {
    const int64_t block = chunk.list.tiles[j].first / block_size;
    if (block < op.num_blocks) sums[block] += tile_sums[j];
  }
  if (chunk.index < op.num_chunks) w.chunk_maxima[row * op.num_chunks + chunk.index] = chunk_max;
}

// One chunk for the R rows from `first_row`: scores, softmax, weighted values, merged into the
// state.
template <typename F, int R>
static void run_rows(const Op& op, const Task& task, const ChunkJob& chunk, int first_row,
                     const Workspace& w) {
  const TileList& list = chunk.list;
  const KVTileShape& shape = op.kv.tile_shape();
  RowView views[R];
  int begin = list.count, end = 0;
  for (int r = 0; r < R; ++r) {
    views[r] = view_row(op, task, first_row + r, list);
    if (views[r].begin == views[r].end) continue;
    begin = views[r].begin < begin ? views[r].begin : begin;
    end = views[r].end > end ? views[r].end : end;
  }
  if (begin >= end) return;
  const int steps = query_steps<F>(op.geometry), padded = op.geometry.padded;
  const auto* queries =
      reinterpret_cast<const typename F::Query*>(w.queries) + int64_t{first_row} * steps;
  // Memory is to be busy all the time: half of the values come while keys are scored, half while
  // scores are softened, the next keys while values are weighed. Element by element scoring takes
  // long enough for all of them.
  Ahead values[2];
  if (chunk.is_first_use) {
    const int64_t half = shape.values + shape.values / 2 / kAlignment * kAlignment;
    const int64_t middle = F::kUnit == 1 ? shape.bytes : half;
    values[0] = {shape.values, middle};
    values[1] = {middle, shape.bytes};
  }
  score_rows<F, R>(queries, w.scales + first_row, steps, shape, list.tiles, begin, end, values[0],
                   w.scores);
  RowSums sums[R];
  float factors[R];
  for (int r = 0; r < R; ++r) {
    float tile_sums[kTilesPerChunk];
    const bool has_mass = op.num_blocks > 0;
    sums[r] = soften_row<F>(w.scores + r * kScoreStride, list.tiles, views[r], begin, end,
                            op.scoring, w.scales[first_row + r].scale, shape,
                            has_mass ? tile_sums : nullptr, values[1], r, R);
    factors[r] = sums[r].factor;
    if (has_mass && views[r].begin < views[r].end) {
      note_mass(op, chunk, views[r], tile_sums, sums[r].max, first_row + r, w);
    }
  }
  const TileList* upcoming = chunk.upcoming;
  weigh_chunk<F, R>({shape, op.geometry.size, list.tiles, begin, end, views[0].visible, w.scores,
                     upcoming == nullptr ? nullptr : upcoming->tiles,
                     upcoming == nullptr ? 0 : upcoming->count, w.chunk_values, padded},
                    views, factors);
  for (int r = 0; r < R; ++r) {
    if (views[r].begin == views[r].end) continue;
    const int row = first_row + r;
    merge_chunk({w.state_max + row, w.state_sum + row, w.state_values + int64_t{row} * padded},
                sums[r].max, sums[r].sum, w.chunk_values + r * padded, padded);
  }
}

template <typename F>
HR_INLINE void run_row_tile(const Op& op, const Task& task, const ChunkJob& chunk, int first_row,
                            int height, const Workspace& w) {
  switch (height) {
    case 1:
      return run_rows<F, 1>(op, task, chunk, first_row, w);
    case 2:
      return run_rows<F, 2>(op, task, chunk, first_row, w);
    case 3:
      return run_rows<F, 3>(op, task, chunk, first_row, w);
    case 4:
      return run_rows<F, 4>(op, task, chunk, first_row, w);
    case 5:
      return run_rows<F, 5>(op, task, chunk, first_row, w);
    default:
      return run_rows<F, kTileRows>(op, task, chunk, first_row, w);
  }
}

// Chunks [begin, end) of one KV head. The first row tile brings in the values while it takes the
// keys, the last one the keys of what comes next: the next chunk or the next head's first.
template <typename F>
static void run_chunks_as(const Op& op, const Task& task, int kv_head, int64_t begin, int64_t end,
                          const Workspace& w) {
  const RowTiles rows = row_tiles(task.num_tokens * op.geometry.heads_per_kv);
  pack_queries<F>(op, task, kv_head, rows, w);
  for (int r = 0; r < rows.num_rows; ++r) w.state_sum[r] = -1.0f;
  const KeyRange visible = visible_keys(op.args, task);
  TileList list = list_tiles(op.kv, op.args.layer, task, kv_head, begin, visible);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    TileList upcoming;
    if (chunk + 1 < end) {
      upcoming = list_tiles(op.kv, op.args.layer, task, kv_head, chunk + 1, visible);
    } else if (kv_head + 1 < task.last_head) {
      upcoming = list_tiles(op.kv, op.args.layer, task, kv_head + 1, begin, visible);
    }
    for (int i = 0; i < rows.count && list.count > 0; ++i) {
      const int first = rows.begin(i);
      const bool is_last = i + 1 == rows.count;
      const ChunkJob job{list, is_last ? &upcoming : nullptr, chunk, kv_head, i == 0};
      run_row_tile<F>(op, task, job, first, rows.begin(i + 1) - first, w);
    }
    list = upcoming;
  }
}

HR_INLINE void run_chunks(const Op& op, const Task& task, int kv_head, int64_t begin, int64_t end,
                          const Workspace& w) {
  const auto run = [&]<typename F>() { run_chunks_as<F>(op, task, kv_head, begin, end, w); };
  switch (op.kv.layout().dtype) {
    case DType::kBF16:
      return run.template operator()<BF16>();
#if !defined(__AVX512BF16__)  // that set is for bf16 only
    case DType::kF16:
      return run.template operator()<F16>();
    case DType::kInt8:
      return run.template operator()<Int8>();
    case DType::kInt16:
      return run.template operator()<Int16>();
    case DType::kF32:
      return run.template operator()<F32>();
#endif
    default:
      return;
  }
}

}  // namespace headrace::HR_ISA
