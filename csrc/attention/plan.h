// How one attention op is cut into tasks: the queries of a few adjacent tokens of one sequence, of
// one KV head or, where there are tasks enough, of all, one after the other.
#pragma once

#include "attention/tile.h"
#include "base/kernels.h"

namespace headrace::HR_ISA {

// Rows of a task. A chunk's keys and values (2 * 512 * D elements) come from the L2 cache once per
// register tile; 48 rows are 8 tiles of 6, enough to hide bringing the chunk there.
inline constexpr int kTaskRows = 48;

struct Geometry {
  int size;             // D
  int padded;           // D rounded up to 16
  int num_heads;        // H
  int num_kv_heads;     // G
  int heads_per_kv;     // H / G
  int tokens_per_task;  // at most
  int max_rows;         // tokens_per_task * heads_per_kv
  int head_tasks;       // tasks that share the KV heads of the same tokens: 1 or G
};

HR_INLINE Geometry geometry_of(const AttentionArgs& args, const KVLayout& layout) {
  Geometry g;
  g.size = layout.head_size;
  g.padded = (layout.head_size + kLanes - 1) / kLanes * kLanes;
  g.num_heads = args.num_heads;
  g.num_kv_heads = layout.num_kv_heads;
  g.heads_per_kv = args.num_heads / layout.num_kv_heads;
  g.tokens_per_task = g.heads_per_kv >= kTaskRows ? 1 : kTaskRows / g.heads_per_kv;
  g.max_rows = g.tokens_per_task * g.heads_per_kv;
  g.head_tasks = g.num_kv_heads;
  return g;
}

struct Task {
  int64_t first_token;   // row of the step
  int64_t first_key;     // key index of that token
  int64_t num_keys;      // of the sequence, this step's tokens included
  const int32_t* table;  // block ids
  int num_tokens;
  int first_head, last_head;  // KV heads, half open
};

// What token `index` (a key index) may see of [0, num_keys); as visible_keys of the reference.
HR_INLINE KeyRange visible_keys(const AttentionArgs& args, int64_t index, int64_t num_keys) {
  KeyRange range{0, num_keys};
  if (args.window > 0 && index - args.window + 1 > 0) range.begin = index - args.window + 1;
  if (args.is_causal) {
    if (index + 1 < num_keys) range.end = index + 1;
  } else if (args.window > 0 && index + args.window < num_keys) {
    range.end = index + args.window;
  }
  return range;
}

// All keys that any token of the task sees.
HR_INLINE KeyRange visible_keys(const AttentionArgs& args, const Task& task) {
  return {visible_keys(args, task.first_key, task.num_keys).begin,
          visible_keys(args, task.first_key + task.num_tokens - 1, task.num_keys).end};
}

// Tasks are numbered by sequence, then KV heads, then tokens from the last (the longest) to the
// first. starts[s] is the first task of sequence s; there are starts[S].
HR_INLINE void number_tasks(const StepInputs& inputs, const Geometry& geometry, int64_t* starts) {
  starts[0] = 0;
  for (int s = 0; s < inputs.num_sequences; ++s) {
    const int64_t count = inputs.query_starts[s + 1] - inputs.query_starts[s];
    const int64_t tiles = (count + geometry.tokens_per_task - 1) / geometry.tokens_per_task;
    starts[s + 1] = starts[s] + tiles * geometry.head_tasks;
  }
}

HR_INLINE Task task_at(int64_t number, const StepInputs& inputs, const Geometry& geometry,
                       const int64_t* starts, int group) {
  int low = 0, high = inputs.num_sequences;  // starts[low] <= number < starts[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t count = inputs.query_starts[low + 1] - inputs.query_starts[low];
  const int64_t tiles = (starts[low + 1] - starts[low]) / geometry.head_tasks;
  const int64_t local = number - starts[low];
  const int64_t offset = (tiles - 1 - local % tiles) * geometry.tokens_per_task;
  const int64_t left = count - offset;
  Task task;
  task.first_token = inputs.query_starts[low] + offset;
  task.first_key = inputs.key_starts[low] + offset;
  task.num_keys = inputs.key_starts[low] + count;
  task.table = inputs.block_tables[group] + inputs.slots[low] * inputs.table_widths[group];
  task.num_tokens =
      static_cast<int>(left < geometry.tokens_per_task ? left : geometry.tokens_per_task);
  const int part = static_cast<int>(local / tiles);
  task.first_head = part * geometry.num_kv_heads / geometry.head_tasks;
  task.last_head = (part + 1) * geometry.num_kv_heads / geometry.head_tasks;
  return task;
}

// The present tiles of sixteen keys of one KV head that overlap `range` within one chunk.
HR_INLINE TileList list_tiles(const KVCache& kv, int layer, const Task& task, int kv_head,
                              int64_t chunk, KeyRange range) {
  const int block_size = kv.layout().block_size;
  const int64_t chunk_begin = chunk * kAttentionChunk;
  const int64_t begin = range.begin > chunk_begin ? range.begin : chunk_begin;
  const int64_t chunk_end = chunk_begin + kAttentionChunk;
  const int64_t end = range.end < chunk_end ? range.end : chunk_end;
  TileList list;
  for (int64_t first = begin / kKeyTile * kKeyTile; first < end; first += kKeyTile) {
    const int32_t block = task.table[first / block_size];
    if (block < 0) continue;  // given back
    list.tiles[list.count++] = {kv.tile(layer, block, kv_head, first % block_size), first};
  }
  return list;
}

}  // namespace headrace::HR_ISA
