// adapt: what low-rank adapters add to the rows of a linear. Rows of one adapter are taken
// together, so that its matrices are read once for several; each row keeps one chain of
// multiply-adds per output, inputs ascending, so its result does not depend on which rows come
// along.
#include "base/adapters.h"
#include "base/kernels.h"
#include "base/simd.h"

namespace headrace::HR_ISA {
namespace {

constexpr int kTileRows = 4;

// Rows order[first, first + count), all with one adapter.
struct Tile {
  int32_t first, count, entry;
};

// What one thread works with.
struct Workspace {
  float* x;       // [kTileRows, K rounded up to whole groups]
  float* hidden;  // [kTileRows, largest rank rounded up to 16]
};

constexpr int64_t up_to(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

HR_INLINE Vec load_sixteen(const AdapterMatrix& matrix, int64_t index, float) {
  return load(reinterpret_cast<const float*>(matrix.data) + index * kLanes);
}
HR_INLINE Vec load_sixteen(const AdapterMatrix& matrix, int64_t index, uint16_t) {
  return load_bf16(reinterpret_cast<const uint16_t*>(matrix.data) + index * kLanes);
}

// Sixteen outputs of MR rows: those of panel p.
template <int MR, typename T>
HR_INLINE void multiply(const AdapterMatrix& matrix, int64_t p, int64_t num_inputs,
                        const float* const (&x)[kTileRows], Vec (&acc)[MR]) {
#pragma GCC unroll 4
  for (int m = 0; m < MR; ++m) acc[m] = zero();
  for (int64_t k = 0; k < num_inputs; ++k) {
    const Vec weight = load_sixteen(matrix, p * num_inputs + k, T{});
#pragma GCC unroll 4
    for (int m = 0; m < MR; ++m) acc[m] = fma(weight, splat(x[m][k]), acc[m]);
  }
}

template <int MR>
HR_INLINE void multiply(const AdapterMatrix& matrix, int64_t p, int64_t num_inputs,
                        const float* const (&x)[kTileRows], Vec (&acc)[MR]) {
  matrix.is_bf16 ? multiply<MR, uint16_t>(matrix, p, num_inputs, x, acc)
                 : multiply<MR, float>(matrix, p, num_inputs, x, acc);
}

// A row as float32: itself, or a copy.
HR_INLINE const float* float_row(const Buffer& x, int64_t row, float* copy) {
  if (x.dtype == DType::kF32) return x.row<float>(row);
  if (x.dtype == DType::kQ8) {
    const Q8Group* groups = x.row<Q8Group>(row);
    for (int64_t i = 0; i < up_to(x.width, kGroup); ++i) {
      const Q8Group& group = groups[i / kGroup];
      copy[i] = group.scale * static_cast<float>(group.codes[i % kGroup]);
    }
    return copy;
  }
  const uint16_t* words = x.row<uint16_t>(row);
  for (int32_t i = 0; i < x.width; i += kLanes) {
    const Mask lanes = first_lanes(x.width - i < kLanes ? x.width - i : kLanes);
    store(copy + i,
          x.dtype == DType::kBF16 ? load_bf16(words + i, lanes) : load_f16(words + i, lanes),
          lanes);
  }
  return copy;
}

template <int MR>
HR_INLINE void add_tile(const AdaptArgs& args, const AdapterEntry& entry, const int32_t* rows,
                        const Workspace& w) {
  const AdapterTable& table = *args.adapters;
  const int64_t x_size = up_to(table.num_inputs, kGroup), rank_size = up_to(entry.rank, kLanes);
  const float* x[kTileRows] = {};
  const float* hidden[kTileRows] = {};
  for (int m = 0; m < MR; ++m) {
    x[m] = float_row(args.x, rows[m], w.x + m * x_size);
    hidden[m] = w.hidden + m * rank_size;
  }
  Vec acc[MR];
  for (int64_t p = 0; p * kLanes < entry.rank; ++p) {
    multiply<MR>(entry.down, p, table.num_inputs, x, acc);
    for (int m = 0; m < MR; ++m) store(w.hidden + m * rank_size + p * kLanes, acc[m]);
  }
  const Vec scale = splat(args.scale);
  for (int64_t p = 0; p * kLanes < table.num_outputs; ++p) {
    multiply<MR>(entry.up, p, entry.rank, hidden, acc);
    const int64_t rest = table.num_outputs - p * kLanes;
    const Mask lanes = first_lanes(rest < kLanes ? static_cast<int>(rest) : kLanes);
    for (int m = 0; m < MR; ++m) {
      float* out = args.out.row<float>(rows[m]) + args.first_column + p * kLanes;
      store(out, load(out, lanes) + acc[m] * scale, lanes);
    }
  }
}

HR_INLINE void run_tile(const AdaptArgs& args, const Tile& tile, const int32_t* order,
                        const Workspace& w) {
  const AdapterEntry& entry = args.adapters->entries[tile.entry];
  const int32_t* rows = order + tile.first;
  switch (tile.count) {
    case 1:
      return add_tile<1>(args, entry, rows, w);
    case 2:
      return add_tile<2>(args, entry, rows, w);
    case 3:
      return add_tile<3>(args, entry, rows, w);
    default:
      return add_tile<4>(args, entry, rows, w);
  }
}

// The adapter of a row of the op's buffers, 0 for none.
HR_INLINE int32_t adapter_of(const AdaptArgs& args, const OpContext& context, int row) {
  const StepInputs& inputs = context.inputs;
  const int32_t token =
      args.x.rows == Rows::kTokens ? context.tokens.first + row : inputs.output_rows[row];
  return inputs.adapters[token];
}

// Rows sorted by adapter, those without left out, and cut into tiles; how many tiles there are.
HR_INLINE int make_tiles(const AdaptArgs& args, const OpContext& context, int num_rows,
                         int32_t* order, Tile* tiles, int32_t* largest_rank) {
  int32_t starts[kMostAdapters + 2] = {};
  const AdapterTable& table = *args.adapters;
  for (int row = 0; row < num_rows; ++row) ++starts[adapter_of(args, context, row) + 1];
  for (int32_t a = 0; a <= table.capacity; ++a) starts[a + 1] += starts[a];
  int32_t next[kMostAdapters + 1];
  for (int32_t a = 0; a <= table.capacity; ++a) next[a] = starts[a];
  for (int row = 0; row < num_rows; ++row) order[next[adapter_of(args, context, row)]++] = row;
  int count = 0;
  for (int32_t a = 1; a <= table.capacity; ++a) {
    const int32_t rank = table.entries[a - 1].rank;
    if (rank == 0 || starts[a] == starts[a + 1]) continue;
    *largest_rank = rank > *largest_rank ? rank : *largest_rank;
    for (int32_t first = starts[a]; first < starts[a + 1]; first += kTileRows) {
      const int32_t rest = starts[a + 1] - first;
      tiles[count++] = {first, rest < kTileRows ? rest : kTileRows, a - 1};
    }
  }
  return count;
}

}  // namespace

void adapt(const AdaptArgs& args, OpContext& context) {
  if (context.inputs.adapters == nullptr) return;
  const int num_rows = context.rows(args.x.rows);
  const AdapterTable& table = *args.adapters;
  int32_t most = 0;
  for (int32_t i = 0; i < table.capacity; ++i) {
    most = table.entries[i].rank > most ? table.entries[i].rank : most;
  }
  if (most == 0) return;
  const int64_t order_bytes = up_to(num_rows * int64_t{sizeof(int32_t)}, kAlignment);
  const int64_t tile_bytes = up_to(num_rows * int64_t{sizeof(Tile)}, kAlignment);
  const int64_t x_size = up_to(table.num_inputs, kGroup) * kTileRows;
  const int64_t thread_size = x_size + up_to(most, kLanes) * kTileRows;
  const int64_t bytes =
      order_bytes + tile_bytes + thread_size * int64_t{sizeof(float)} * context.pool.num_threads();
  std::byte* memory = context.scratch(static_cast<size_t>(bytes));
  auto* order = reinterpret_cast<int32_t*>(memory);
  auto* tiles = reinterpret_cast<Tile*>(memory + order_bytes);
  auto* floats = reinterpret_cast<float*>(memory + order_bytes + tile_bytes);
  int32_t largest_rank = 0;
  const int count = make_tiles(args, context, num_rows, order, tiles, &largest_rank);
  const auto run = [&](int64_t item, int thread) {
    float* mine = floats + thread * thread_size;
    run_tile(args, tiles[item], order, {mine, mine + x_size});
  };
  if (count <= 1) {
    if (count == 1) run(0, 0);
    return;
  }
  context.pool.parallel_for(count, run);
}

}  // namespace headrace::HR_ISA
