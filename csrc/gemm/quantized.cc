// Linear layers with 4- and 8-bit weights and int8 rows.
//
// Per output and group of 32 inputs an exact integer dot product, then float accumulation with
// groups ascending, as kernels/ops.py states. An output depends on its own row and panel only, so
// neither tile heights nor threads can change a bit.
#include "base/kernels.h"
#include "gemm/linear.h"
#include "gemm/tiles.h"

#if defined(HR_ISA_AVX512)
#include "gemm/dot_avx512.h"
#elif defined(HR_ISA_AVX2)
#include "gemm/dot_avx2.h"
#else
#include "gemm/dot_generic.h"
#endif

namespace headrace::HR_ISA {
namespace {

HR_INLINE const uint16_t* halves(const std::byte* p) {
  return reinterpret_cast<const uint16_t*>(p);
}

// Weights with one scale per group of 32.
template <bool kIsNibble, int MR>
HR_INLINE void add_group32(const TileJob& job, const std::byte* panel, int64_t group,
                           const Q8Group* x, Vec (&acc)[MR]) {
  IntVec dot[MR];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    const Q8Group* row = row_at(x, job.x_stride, m);
    dot[m] = splat_int(-job.offset * (row->half_sums[0] + row->half_sums[1]));
  }
  const std::byte* codes = panel + group * job.layout.group_codes;
  if constexpr (kIsNibble) {
    dot_w4<MR>(codes, x, job.x_stride, dot);
  } else {
    dot_w8<0, MR>(codes, x, job.x_stride, dot);
    dot_w8<1, MR>(codes, x, job.x_stride, dot);
  }
  const Vec scale = load_f16(halves(panel + job.layout.scales) + group * kPanel);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    acc[m] = fma(to_float(dot[m]) * scale, splat(row_at(x, job.x_stride, m)->scale), acc[m]);
  }
  if (!job.has_mins) return;
  const Vec min = load_f16(halves(panel + job.layout.mins) + group * kPanel);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    acc[m] = fma(min, splat(row_at(x, job.x_stride, m)->scaled_sum), acc[m]);
  }
}

// Weights with one scale per 16 inputs: the two halves of a group of the row.
template <int kHalf, int MR>
HR_INLINE void add_group16(const TileJob& job, const std::byte* panel, int64_t group,
                           const Q8Group* x, Vec (&acc)[MR]) {
  IntVec dot[MR];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    dot[m] = splat_int(-job.offset * row_at(x, job.x_stride, m)->half_sums[kHalf]);
  }
  dot_w8<kHalf, MR>(panel + group * job.layout.group_codes, x, job.x_stride, dot);
  const int64_t index = (2 * group + kHalf) * kPanel;
  const Vec scale = load_f16(halves(panel + job.layout.scales) + index);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    acc[m] = fma(to_float(dot[m]) * scale, splat(row_at(x, job.x_stride, m)->scale), acc[m]);
  }
  if (!job.has_mins) return;
  const Vec min = load_f16(halves(panel + job.layout.mins) + index);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    const Q8Group* row = row_at(x, job.x_stride, m);
    acc[m] = fma(min, splat(row->scale * static_cast<float>(row->half_sums[kHalf])), acc[m]);
  }
}

// Asks for the same group of the next panel: memory is read in order, one panel ahead.
template <WeightFormat kFormat>
HR_INLINE void prefetch_group(const TileJob& job, const std::byte* next, int64_t group) {
  constexpr int kCodeLines = kFormat == WeightFormat::kW4G32 ? 4 : 8;
#pragma GCC unroll 8
  for (int i = 0; i < kCodeLines; ++i) prefetch(next + (group * kCodeLines + i) * 64);
  const int64_t tail = job.layout.scales + group * 64;
  if (tail < job.layout.bytes) prefetch(next + tail);
  if (kFormat == WeightFormat::kW8G16 && job.has_mins)
    prefetch(next + job.layout.mins + group * 64);
}

template <WeightFormat kFormat, int MR>
void run(const TileJob& job) {
  for (int64_t p = job.first_panel; p < job.last_panel; ++p) {
    const std::byte* panel = job.panels + p * job.layout.bytes;
    const bool has_next = (p + 1) * kPanel < job.num_outputs;
    for (int row = job.first_row; row < job.last_row; row += MR) {
      const bool prefetches = has_next && row == job.first_row;
      const auto* x = reinterpret_cast<const Q8Group*>(job.x + row * job.x_stride);
      Vec acc[MR];
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) acc[m] = zero();
      for (int64_t group = 0; group < job.layout.groups; ++group, ++x) {
        if (prefetches) prefetch_group<kFormat>(job, panel + job.layout.bytes, group);
        if constexpr (kFormat == WeightFormat::kW8G16) {
          add_group16<0, MR>(job, panel, group, x, acc);
          add_group16<1, MR>(job, panel, group, x, acc);
        } else {
          add_group32<kFormat == WeightFormat::kW4G32, MR>(job, panel, group, x, acc);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        if (row + m < job.last_row) store_tile_row(job, p, row + m, acc[m]);
      }
    }
  }
}

#if defined(HR_ISA_AVX512)
#define HR_HEIGHTS(F)                                                               \
  {                                                                                 \
    {1, run<F, 1>}, {2, run<F, 2>}, {3, run<F, 3>}, {4, run<F, 4>}, {6, run<F, 6>}, \
        {8, run<F, 8>}, {                                                           \
      12, run<F, 12>                                                                \
    }                                                                               \
  }
#else
#define HR_HEIGHTS(F)                                                \
  {                                                                  \
    {1, run<F, 1>}, {2, run<F, 2>}, {3, run<F, 3>}, { 4, run<F, 4> } \
  }
#endif

constexpr TileChoice kW4G32[] = HR_HEIGHTS(WeightFormat::kW4G32);
constexpr TileChoice kW8G32[] = HR_HEIGHTS(WeightFormat::kW8G32);
constexpr TileChoice kW8G16[] = HR_HEIGHTS(WeightFormat::kW8G16);
constexpr int kHeights = sizeof(kW4G32) / sizeof(kW4G32[0]);

}  // namespace

void linear_quantized(const LinearArgs& args, OpContext& context) {
  switch (args.weight.format) {
    case WeightFormat::kW4G32:
      return run_tiles(args, context, kW4G32, kHeights, 1.5f);
    case WeightFormat::kW8G32:
      return run_tiles(args, context, kW8G32, kHeights, 1.0f);
    default:
      return run_tiles(args, context, kW8G16, kHeights, 1.0f);
  }
}

}  // namespace headrace::HR_ISA
