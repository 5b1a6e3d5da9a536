// Rows of Q8 codes, rearranged for the micro-kernels: the rows of a tile side by side, group after
// group, so that everything a tile reads lies at a constant distance from one moving pointer.
#pragma once

#include <cstring>
#include <type_traits>

#include "base/types.h"

namespace headrace {

using Codes = int8_t[kGroup];

// One group of 32 inputs of MR rows. kScales is how many scales a weight has per group: 1, or 2 for
// groups of 16.
template <int MR, int kScales, bool kHasMins>
struct TileGroup {
  Codes codes[MR];
  float scale[MR];
  // Weights have an offset or minimums, so a kernel loads one number per row and scale:
  // -offset * sum of codes, where the integer dot product begins, or scale * sum of codes, which a
  // minimum is multiplied with.
  std::conditional_t<kHasMins, float, int32_t> correction[kScales][MR];
};

// Fills one tile: `count` rows from `x` on, the rest zeros.
template <int MR, int kScales, bool kHasMins>
HR_ALWAYS_INLINE void fill_tile(const std::byte* x, int64_t stride, int count, int64_t groups,
                                int32_t offset, TileGroup<MR, kScales, kHasMins>* out) {
  if (count < MR)
    std::memset(static_cast<void*>(out), 0, sizeof(*out) * static_cast<size_t>(groups));
  for (int m = 0; m < count; ++m) {
    const auto* row = reinterpret_cast<const Q8Group*>(x + m * stride);
    for (int64_t g = 0; g < groups; ++g) {
      const Q8Group& from = row[g];
      TileGroup<MR, kScales, kHasMins>& to = out[g];
      std::memcpy(to.codes[m], from.codes, sizeof(Codes));
      to.scale[m] = from.scale;
      if constexpr (kScales == 1 && kHasMins) {
        to.correction[0][m] = from.scaled_sum;
      } else if constexpr (kScales == 1) {
        to.correction[0][m] = -offset * (from.half_sums[0] + from.half_sums[1]);
      } else {
        for (int half = 0; half < 2; ++half) {
          if constexpr (kHasMins) {
            to.correction[half][m] = from.scale * static_cast<float>(from.half_sums[half]);
          } else {
            to.correction[half][m] = -offset * from.half_sums[half];
          }
        }
      }
    }
  }
}

}  // namespace headrace
