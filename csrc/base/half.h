// Scalar conversions of bf16 and f16, round to nearest even, NaN stays NaN. For edges and tables;
// the vector forms are in simd.h.
#pragma once

#include <bit>
#include <cstdint>

#include "base/types.h"

namespace headrace {

HR_ALWAYS_INLINE float float_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

HR_ALWAYS_INLINE uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

HR_ALWAYS_INLINE float float_from_f16(uint16_t half) {
  // The exponent is moved by a multiplication, which also makes subnormals right.
  const uint32_t magnitude = uint32_t{half} & 0x7fffu;
  const uint32_t sign = (uint32_t{half} & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

HR_ALWAYS_INLINE uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: let the adder round
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace headrace
