// The factor of RMSNorm, for whole rows and for single heads; mean and factor of LayerNorm.
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

// Calls fn(i, lanes, a) for every sixteen columns of a row, for accumulator a: 64 columns are one
// round.
template <typename Fn>
HR_INLINE void for_accumulators(int width, Fn fn) {
  int i = 0;
  for (; i + 64 <= width; i += 64) {
    for (int a = 0; a < 4; ++a) fn(i + 16 * a, AllLanes{}, a);
  }
  for (int a = 0; i < width; i += kLanes, ++a) {
    const int rest = width - i;
    fn(i, first_lanes(rest < kLanes ? rest : kLanes), a);
  }
}

HR_INLINE float add_up(const Vec* sums) {
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

struct Moments {
  float mean, factor;  // factor: 1 / sqrt(variance + eps)
};

// Two passes, each in the order of rms_factor.
HR_INLINE Moments layer_moments(const float* x, int width, float eps) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  for_accumulators(width,
                   [&](int i, auto lanes, int a) { sums[a] = sums[a] + load(x + i, lanes); });
  const float mean = add_up(sums) / static_cast<float>(width);
  alignas(64) float means[kLanes];
  store(means, splat(mean));
  Vec squares[4] = {zero(), zero(), zero(), zero()};
  for_accumulators(width, [&](int i, auto lanes, int a) {
    const Vec value = load(x + i, lanes) - load(means, lanes);  // zero beyond the lanes
    squares[a] = fma(value, value, squares[a]);
  });
  const float variance = add_up(squares) / static_cast<float>(width);
  return {mean, 1.0f / __builtin_sqrtf(variance + eps)};
}

}  // namespace headrace::HR_ISA
