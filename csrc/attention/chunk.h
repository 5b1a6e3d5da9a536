// One chunk of keys for the rows of a task: scores, softmax, weighted values, merge.
#pragma once

#include "attention/workspace.h"

namespace headrace::HR_ISA {

// A row's share of a list of tiles.
struct RowView {
  KeyRange visible;
  int begin, end;  // tiles that hold visible keys
};

HR_INLINE RowView view_row(const Op& op, const Task& task, int row, const KeyTile* tiles,
                           int count) {
  RowView view;
  view.visible =
      visible_keys(op.args, task.first_key + row / op.geometry.heads_per_kv, task.num_keys);
  view.begin = 0;
  while (view.begin < count && tiles[view.begin].first + kKeyTile <= view.visible.begin)
    ++view.begin;
  view.end = count;
  while (view.end > view.begin && tiles[view.end - 1].first >= view.visible.end) --view.end;
  return view;
}

// Tiles of which every row of a register tile sees all keys.
HR_INLINE void common_tiles(const RowView* views, int rows, const KeyTile* tiles, int* begin,
                            int* end) {
  *begin = views[0].begin;
  *end = views[0].end;
  for (int r = 0; r < rows; ++r) {
    int first = views[r].begin, last = views[r].end;
    while (first < last && tiles[first].first < views[r].visible.begin) ++first;
    while (last > first && tiles[last - 1].first + kKeyTile > views[r].visible.end) --last;
    *begin = first > *begin ? first : *begin;
    *end = last < *end ? last : *end;
  }
  if (*end < *begin) *end = *begin;
}

// chunk_values = weighted values of R rows. Tiles that some rows see in part are taken row by row:
// a key that a row may not see is never multiplied, not even with 0 (it may hold NaN).
template <typename Read, int R>
static void weigh_chunk(const Op& op, const KeyTile* tiles, const RowView* views,
                        const Workspace& w) {
  const int size = op.geometry.size, padded = op.geometry.padded;
  for (int i = 0; i < R * padded; i += kLanes) store(w.chunk_values + i, zero());
  bool is_uniform = true;
  for (int r = 1; r < R; ++r) {
    is_uniform &= views[r].visible.begin == views[0].visible.begin &&
                  views[r].visible.end == views[0].visible.end;
  }
  if (is_uniform) {
    weigh_rows<Read, R>(w.scores, tiles, views[0].begin, views[0].end, views[0].visible, size,
                        w.chunk_values, padded);
    return;
  }
  int begin, end;
  common_tiles(views, R, tiles, &begin, &end);
  const KeyRange all{0, INT64_MAX};
  for (int r = 0; r < R; ++r) {
    const int last = views[r].end < begin ? views[r].end : begin;
    weigh_rows<Read, 1>(w.scores + r * kScoreStride, tiles, views[r].begin, last, views[r].visible,
                        size, w.chunk_values + r * padded, padded);
  }
  weigh_rows<Read, R>(w.scores, tiles, begin, end, all, size, w.chunk_values, padded);
  for (int r = 0; r < R; ++r) {
    const int first = views[r].begin > end ? views[r].begin : end;
    weigh_rows<Read, 1>(w.scores + r * kScoreStride, tiles, first, views[r].end, views[r].visible,
                        size, w.chunk_values + r * padded, padded);
  }
}

// Blocks that the caller's mass has no column for are left out.
HR_INLINE void note_mass(const Op& op, const KeyTile* tiles, const RowView& view,
                         const float* tile_sums, int64_t chunk, float chunk_max, int row,
                         const Workspace& w) {
  const int block_size = op.kv.layout().block_size;
  float* sums = w.block_sums + row * op.num_blocks;
  for (int j = view.begin; j < view.end; ++j) {
    const int64_t block = tiles[j].first / block_size;
    if (block < op.num_blocks) sums[block] += tile_sums[j];
  }
  if (chunk < op.num_chunks) w.chunk_maxima[row * op.num_chunks + chunk] = chunk_max;
}

// One chunk for the R rows from `first_row`: scores, softmax, weighted values, merged into the
// state.
template <typename Read, int R>
static void run_rows(const Op& op, const Task& task, int64_t chunk, int first_row,
                     const float* queries, const KeyTile* tiles, int count, const Workspace& w) {
  RowView views[R];
  int begin = count, end = 0;
  for (int r = 0; r < R; ++r) {
    views[r] = view_row(op, task, first_row + r, tiles, count);
    if (views[r].begin == views[r].end) continue;
    begin = views[r].begin < begin ? views[r].begin : begin;
    end = views[r].end > end ? views[r].end : end;
  }
  if (begin >= end) return;
  score_rows<Read, R>(queries, op.geometry.size, tiles, begin, end, w.scores);
  for (int r = 0; r < R; ++r) {
    if (views[r].begin == views[r].end) continue;
    float tile_sums[kTilesPerChunk];
    const bool has_mass = op.num_blocks > 0;
    soften_row(w.scores + r * kScoreStride, tiles, views[r].begin, views[r].end, views[r].visible,
               op.scoring, w.chunk_max + r, w.chunk_sum + r, has_mass ? tile_sums : nullptr);
    if (has_mass) {
      note_mass(op, tiles, views[r], tile_sums, chunk, w.chunk_max[r], first_row + r, w);
    }
  }
  weigh_chunk<Read, R>(op, tiles, views, w);
  const int padded = op.geometry.padded;
  for (int r = 0; r < R; ++r) {
    if (views[r].begin == views[r].end) continue;
    const int row = first_row + r;
    merge_chunk({w.state_max + row, w.state_sum + row, w.state_values + int64_t{row} * padded},
                w.chunk_max[r], w.chunk_sum[r], w.chunk_values + r * padded, padded);
  }
}

template <typename Read>
static void run_chunks(const Op& op, const Task& task, int64_t chunk_begin, int64_t chunk_end,
                       const Workspace& w) {
  const RowTiles rows = row_tiles(task.num_tokens * op.geometry.heads_per_kv);
  pack_queries(op, task, rows, w.queries);
  for (int r = 0; r < rows.num_rows; ++r) w.state_sum[r] = -1.0f;
  const KeyRange visible = visible_keys(op.args, task);
  for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
    KeyTile tiles[kTilesPerChunk];
    const int count = list_tiles(op.kv, op.args.layer, task, chunk, visible, tiles);
    for (int i = 0; i < rows.count && count > 0; ++i) {
      const int first = rows.begin(i), height = rows.begin(i + 1) - first;
      const float* queries = w.queries + int64_t{first} * op.geometry.size;
      const auto run = [&]<int R>() {
        if (height == R) run_rows<Read, R>(op, task, chunk, first, queries, tiles, count, w);
      };
      run.template operator()<1>();
      run.template operator()<2>();
      run.template operator()<3>();
      run.template operator()<4>();
      run.template operator()<5>();
      run.template operator()<6>();
    }
  }
}

HR_INLINE void run_chunks(const Op& op, const Task& task, int64_t begin, int64_t end,
                          const Workspace& w) {
  switch (op.kv.layout().dtype) {
    case DType::kF16:
      return run_chunks<ReadF16>(op, task, begin, end, w);
    case DType::kBF16:
      return run_chunks<ReadBF16>(op, task, begin, end, w);
    default:
      return run_chunks<ReadF32>(op, task, begin, end, w);
  }
}

}  // namespace headrace::HR_ISA
