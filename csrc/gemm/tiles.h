// How a linear is cut into work: panels of outputs times blocks of rows. Shared by all weight
// formats.
#pragma once

#include <cmath>

#include "base/kernels.h"
#include "base/simd.h"
#include "gemm/panels.h"

namespace headrace::HR_ISA {

// All that a micro-kernel needs. It computes panels [first_panel, last_panel) for rows [first_row,
// last_row), in tiles of its own height that start at multiples of it.
struct TileJob {
  const std::byte* panels;
  PanelLayout layout;
  bool has_mins;
  int32_t offset;
  int64_t num_outputs, num_inputs;
  const std::byte* x;
  int64_t x_stride;
  std::byte* operand;    // prepared tiles, where the kernel has a `prepare`
  std::byte* workspace;  // of the thread that runs, where the kernel wants one
  std::byte* out;        // at first_column
  int64_t out_stride;
  const float* bias;
  bool accumulate;
  float unit;  // 2^-exponent of the weight
  float scale;
  int num_rows;
  int64_t first_panel, last_panel;
  int first_row, last_row;
};

// A micro-kernel of some height.
struct TileChoice {
  int height;
  void (*run)(const TileJob&);
  void (*prepare)(const TileJob&,
                  int tile);    // rearranges the rows of one tile; null: rows are read as they are
  int64_t group_bytes;          // of a prepared tile, per group of 32 inputs
  int64_t workspace_bytes = 0;  // per thread and group; only beside a `prepare`
};

// ((acc * unit + bias) * scale) stored, or added to what is there.
HR_INLINE void store_tile_row(const TileJob& job, int64_t panel, int row, Vec acc) {
  const int64_t first = panel * kPanel;
  float* out = reinterpret_cast<float*>(job.out + row * job.out_stride) + first;
  acc = acc * splat(job.unit);
  const int64_t rest = job.num_outputs - first;
  if (rest >= kPanel) {
    if (job.bias != nullptr) acc = acc + load(job.bias + first);
    acc = acc * splat(job.scale);
    store(out, job.accumulate ? load(out) + acc : acc);
    return;
  }
  const Mask mask = first_lanes(static_cast<int>(rest));
  if (job.bias != nullptr) acc = acc + load(job.bias + first, mask);
  acc = acc * splat(job.scale);
  store(out, job.accumulate ? load(out, mask) + acc : acc, mask);
}

// The height that wastes least: every tile costs its rows and about `overhead` rows of unpacking.
HR_INLINE const TileChoice& choose_tile(const TileChoice* choices, int count, int rows,
                                        float overhead) {
  int best = 0;
  float least = 0.0f;
  for (int i = 0; i < count; ++i) {
    const int tiles = (rows + choices[i].height - 1) / choices[i].height;
    const float cost =
        static_cast<float>(tiles) * (static_cast<float>(choices[i].height) + overhead);
    if (i == 0 || cost < least) {
      best = i;
      least = cost;
    }
  }
  return choices[best];
}

HR_INLINE TileJob make_job(const LinearArgs& args, int rows) {
  const PackedWeight& weight = args.weight;
  TileJob job{};
  job.panels = weight.data + kWeightHeader;
  job.layout = panel_layout(weight.format, weight.num_inputs, weight.has_mins);
  job.has_mins = weight.has_mins;
  job.offset = weight.offset;
  job.num_outputs = weight.num_outputs;
  job.num_inputs = weight.num_inputs;
  job.x = args.x.data;
  job.x_stride = args.x.stride;
  job.out = args.out.data + args.first_column * static_cast<int64_t>(sizeof(float));
  job.out_stride = args.out.stride;
  job.bias = args.bias;
  job.accumulate = args.accumulate;
  job.unit = std::ldexp(1.0f, -reinterpret_cast<const WeightHeader*>(weight.data)->exponent);
  job.scale = args.scale;
  job.num_rows = rows;
  return job;
}

// Panels that a tile of rows asks for as it reads its own.
struct Ahead {
  const std::byte* panels;
  int count;  // 0 to 2
};

// The line at an offset into every panel of `ahead`.
HR_INLINE void prefetch_line(const TileJob& job, const Ahead& ahead, int64_t offset) {
  if (ahead.count > 0) __builtin_prefetch(ahead.panels + offset, 0, 2);
  if (ahead.count > 1) __builtin_prefetch(ahead.panels + job.layout.bytes + offset, 0, 2);
}

// Calls tile(row, ahead) for every MR rows of the job, of which each computes NP panels from p on.
// Each of the last tiles asks for one of the next panels, or for two where tiles are few: with a
// single tile the hardware sees one stream and needs no help; with more it loses the thread while
// panels are read again.
template <int MR, int NP, typename Tile>
HR_INLINE void for_each_tile(const TileJob& job, int64_t p, Tile tile) {
  const std::byte* next = job.panels + (p + NP) * job.layout.bytes;
  const int tiles = (job.last_row - job.first_row + MR - 1) / MR;
  const int each = NP > 1 && tiles <= 3 ? 2 : 1;
  for (int i = 0; i < tiles; ++i) {
    const int panel = each * (tiles - 1 - i);
    const bool asks = tiles > 1 && panel < NP;
    tile(job.first_row + i * MR, Ahead{next + panel * job.layout.bytes, asks ? each : 0});
  }
}

// Few tiles are prepared faster than other threads can be told about them.
inline constexpr int kTilesAlone = 2;

HR_INLINE void prepare_tiles(TileJob& job, OpContext& context, const TileChoice& tile, int tiles) {
  if (tile.prepare == nullptr) return;
  const int64_t bytes = tiles * job.layout.groups * tile.group_bytes;
  const int64_t workspaces = context.pool.num_threads() * job.layout.groups * tile.workspace_bytes;
  job.operand = context.scratch(static_cast<size_t>(bytes + workspaces));
  job.workspace = job.operand + bytes;
  if (tiles <= kTilesAlone) {
    for (int i = 0; i < tiles; ++i) tile.prepare(job, i);
  } else {
    context.pool.parallel_for(tiles,
                              [&](int64_t i, int) { tile.prepare(job, static_cast<int>(i)); });
  }
}

// Rows of one block: as many as keep the operand in a part of a small L2, in whole tiles.
inline constexpr int64_t kBlockBytes = 128 * 1024;

// Weights of one item, at least: shorter streams of memory spend their time starting.
inline constexpr int64_t kItemBytes = 48 * 1024;
inline constexpr int64_t kItemsPerThread = 8;

// Panels per item: every thread gets equally many items, few enough that each is a stream worth
// starting.
HR_INLINE int64_t panels_per_item(const TileJob& job, int64_t threads, int64_t blocks,
                                  int64_t panels_at_once) {
  const int64_t panels = num_panels(job.num_outputs);
  const int64_t share = panels * job.layout.bytes / threads / kItemBytes;
  const int64_t rounds = share < 1 ? 1 : (share < kItemsPerThread ? share : kItemsPerThread);
  const int64_t items = (threads * rounds + blocks - 1) / blocks;
  return round_up((panels + items - 1) / items, panels_at_once);
}

// Cuts the linear into items and runs them; items are `panels_at_once` panels or a multiple of it.
HR_INLINE void run_tiles(const LinearArgs& args, OpContext& context, const TileChoice* choices,
                         int count, float overhead, int64_t panels_at_once = 1) {
  const int rows = context.rows(args.x.rows);
  if (rows == 0) return;
  TileJob job = make_job(args, rows);
  const TileChoice& tile = choose_tile(choices, count, rows, overhead);
  prepare_tiles(job, context, tile, (rows + tile.height - 1) / tile.height);

  const int64_t fitting = kBlockBytes / args.x.stride / tile.height;
  const int64_t block = (fitting < 1 ? 1 : fitting) * tile.height;
  const int64_t blocks = (rows + block - 1) / block;
  const int64_t panels = num_panels(job.num_outputs);
  const int64_t step = panels_per_item(job, context.pool.num_threads(), blocks, panels_at_once);
  const int64_t steps = (panels + step - 1) / step;
  context.pool.parallel_for(blocks * steps, [&](int64_t item, int thread) {
    TileJob part = job;
    part.workspace += thread * job.layout.groups * tile.workspace_bytes;
    part.first_row = static_cast<int>(item / steps * block);
    part.last_row = static_cast<int>(part.first_row + block < rows ? part.first_row + block : rows);
    part.first_panel = item % steps * step;
    part.last_panel = part.first_panel + step < panels ? part.first_panel + step : panels;
    tile.run(part);
  });
}

}  // namespace headrace::HR_ISA
