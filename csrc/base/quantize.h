// Rows of dtype Q8, for the ops that produce them. Per instruction set, see simd.h.
#pragma once

#include "base/simd.h"
#include "base/types.h"

namespace headrace::HR_ISA {

// Below this the reciprocal of the scale would overflow; such a group counts as zeros.
inline constexpr float kSmallestMagnitude = 0x1p-100f;

// 32 values -> one group: scale = max|x| / 127, codes = rint(x * (127 / max|x|)). A NaN or an
// infinity makes the scale NaN or infinite, so that it shows in the result; the codes are then of
// no meaning.
HR_INLINE void quantize_group(Vec first, Vec second, Q8Group* out) {
  const float magnitude = reduce_max_magnitude(max_magnitude(first, second));
  const bool is_zero = magnitude < kSmallestMagnitude;
  const float scale = is_zero ? 0.0f : magnitude / 127.0f;
  const Vec inverse = splat(is_zero ? 0.0f : 127.0f / magnitude);
  store_codes(out->codes, first * inverse, second * inverse, out->half_sums);
  out->scale = scale;
  out->scaled_sum = scale * static_cast<float>(out->half_sums[0] + out->half_sums[1]);
}

// x [width] -> ceil(width / 32) groups; the last one is padded with zeros.
HR_INLINE void quantize_row(const float* x, int width, Q8Group* out) {
  int i = 0;
  for (; i + kGroup <= width; i += kGroup) quantize_group(load(x + i), load(x + i + 16), out++);
  if (i == width) return;
  const int rest = width - i;
  const Vec first = load(x + i, first_lanes(rest < 16 ? rest : 16));
  const Vec second = rest > 16 ? load(x + i + 16, first_lanes(rest - 16)) : zero();
  quantize_group(first, second, out);
}

// One row of a buffer of any dtype from float32. Columns are written in multiples of 16 where the
// dtype is a float one and `width` allows, the rest masked.
HR_INLINE void store_row(const float* x, int width, DType dtype, std::byte* out) {
  if (dtype == DType::kQ8) return quantize_row(x, width, reinterpret_cast<Q8Group*>(out));
  for (int i = 0; i < width; i += kLanes) {
    const int rest = width - i;
    const Mask mask = first_lanes(rest < kLanes ? rest : kLanes);
    const Vec value = load(x + i, mask);
    switch (dtype) {
      case DType::kBF16:
        store_bf16(reinterpret_cast<uint16_t*>(out) + i, value, mask);
        break;
      case DType::kF16:
        store_f16(reinterpret_cast<uint16_t*>(out) + i, value, mask);
        break;
      default:
        store(reinterpret_cast<float*>(out) + i, value, mask);
    }
  }
}

}  // namespace headrace::HR_ISA
