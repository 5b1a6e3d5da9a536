// Linear layers with 4- and 8-bit weights and int8 rows.
//
// Per output and group of 32 inputs an exact integer dot product, then float accumulation with
// groups ascending, as kernels/ops.py states. An output depends on its own row and panel only, so
// neither tile heights nor threads can change a bit.
#include "gemm/quantized.h"

#include "base/kernels.h"
#include "gemm/dot.h"
#include "gemm/linear.h"
#include "gemm/nibbles.h"

namespace headrace::HR_ISA {
namespace {

// The inputs that share the scale `kIndex` of a group: all 32, or a half.
template <WeightFormat kFormat, bool kHasMins, int kIndex, int MR>
HR_INLINE void add_scale_group(const TileJob& job, const GroupPlace& weight,
                               const Group<kFormat, kHasMins, MR>& x, Vec (&acc)[MR]) {
  IntVec dot[MR];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m] = splat_int(kHasMins ? 0 : x.correction[kIndex][m]);
  if constexpr (has_nibbles(kFormat)) {
    dot_w4<code_table(kFormat), MR>(weight.codes, x.codes, dot);
  } else {
    constexpr int kQuads = 8 / kScalesOf<kFormat>;
    dot_w8<kIndex * kQuads, kQuads, MR>(weight.codes, x.codes, dot);
  }
  const Vec scale = load_f16(halves(weight.scales) + kIndex * kPanel);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) acc[m] = fma(to_float(dot[m]) * scale, splat(x.scale[m]), acc[m]);
  if constexpr (kHasMins) {
    const Vec min = load_f16(halves(weight.scales + job.layout.mins) + kIndex * kPanel);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) acc[m] = fma(min, splat(x.correction[kIndex][m]), acc[m]);
  }
}

// Asks for a part of the next panel, as large as one group. With one tile of rows the hardware sees
// a single stream and needs no help; with more it loses the thread while a panel is read again.
template <WeightFormat kFormat>
HR_INLINE void prefetch_group(const std::byte* next, int64_t group) {
  constexpr int kLines = has_nibbles(kFormat) ? 5 : 9;
#pragma GCC unroll 9
  for (int i = 0; i < kLines; ++i)
    __builtin_prefetch(next + (group * kLines + i) * kAlignment, 0, 2);
}

template <WeightFormat kFormat, bool kHasMins, int MR>
void run(const TileJob& job) {
  const auto* operand = reinterpret_cast<const Group<kFormat, kHasMins, MR>*>(job.operand);
  const int64_t groups = job.layout.groups;
  for (int64_t p = job.first_panel; p < job.last_panel; ++p) {
    const std::byte* panel = job.panels + p * job.layout.bytes;
    for (int row = job.first_row; row < job.last_row; row += MR) {
      const bool prefetches = row != job.first_row && row + MR >= job.last_row;
      const Group<kFormat, kHasMins, MR>* x = operand + row / MR * groups;
      Vec acc[MR];
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) acc[m] = zero();
      for (int64_t group = 0; group < groups; ++group, ++x) {
        if (prefetches) prefetch_group<kFormat>(panel + job.layout.bytes, group);
        const GroupPlace weight = locate_group(job.layout, panel, group);
        add_scale_group<kFormat, kHasMins, 0, MR>(job, weight, *x, acc);
        if constexpr (kScalesOf<kFormat> == 2) {
          add_scale_group<kFormat, kHasMins, 1, MR>(job, weight, *x, acc);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        if (row + m < job.last_row) store_tile_row(job, p, row + m, acc[m]);
      }
    }
  }
}

template <WeightFormat kFormat, bool kHasMins, int MR>
constexpr TileChoice make_choice() {
  return {MR, run<kFormat, kHasMins, MR>, prepare<kFormat, kHasMins, MR>,
          sizeof(Group<kFormat, kHasMins, MR>)};
}

template <WeightFormat kFormat, bool kHasMins, int... kHeights>
inline constexpr TileChoice kChoicesOf[] = {make_choice<kFormat, kHasMins, kHeights>()...};

// As tall as registers allow: one vector of integer sums and one of floats per row.
#if defined(HR_ISA_AVX512)
template <WeightFormat kFormat, bool kHasMins>
constexpr auto& kChoices = kChoicesOf<kFormat, kHasMins, 1, 2, 3, 4, 5, 6, 8, 10, 12>;
#else
template <WeightFormat kFormat, bool kHasMins>
constexpr auto& kChoices = kChoicesOf<kFormat, kHasMins, 1, 2, 3, 4>;
#endif

template <WeightFormat kFormat, bool kHasMins>
void run_choices(const LinearArgs& args, OpContext& context, float overhead) {
  constexpr int kCount = sizeof(kChoices<kFormat, kHasMins>) / sizeof(TileChoice);
  run_tiles(args, context, kChoices<kFormat, kHasMins>, kCount, overhead);
}

template <WeightFormat kFormat>
void run_format(const LinearArgs& args, OpContext& context, float overhead) {
  if (args.weight.has_mins) return run_choices<kFormat, true>(args, context, overhead);
  run_choices<kFormat, false>(args, context, overhead);
}

}  // namespace

void linear_quantized(const LinearArgs& args, OpContext& context) {
  switch (args.weight.format) {
    case WeightFormat::kW4G32:
      return run_format<WeightFormat::kW4G32>(args, context, 1.5f);
    case WeightFormat::kW8G32:
      return run_format<WeightFormat::kW8G32>(args, context, 1.0f);
    default:
      return run_format<WeightFormat::kW8G16>(args, context, 1.0f);
  }
}

}  // namespace headrace::HR_ISA
