// The factor of RMSNorm, for whole rows and for single heads.
#pragma once

#include "base/simd.h"
#include "elementwise/rows.h"

namespace headrace::HR_ISA {

// 1 / sqrt(mean(x^2) + eps). Lane l of accumulator a adds columns 64 j + 16 a + l, j ascending; the
// four accumulators are added pairwise, then the lanes in the tree of reduce_add.
HR_INLINE float rms_factor(const float* x, int width, float eps) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 64 <= width; i += 64) {
    for (int a = 0; a < 4; ++a) {
      const Vec value = load(x + i + 16 * a);
      sums[a] = fma(value, value, sums[a]);
    }
  }
  for (int a = 0; i < width; i += kLanes, ++a) {
    const int rest = width - i;
    const Vec value = load(x + i, first_lanes(rest < kLanes ? rest : kLanes));
    sums[a] = fma(value, value, sums[a]);
  }
  const float sum = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + eps);
}

}  // namespace headrace::HR_ISA
