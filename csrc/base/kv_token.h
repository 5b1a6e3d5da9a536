// One token of one head into a tile of the KV cache, and back: what every instruction set must
// store. Scalar, for edges; the kernels' own form is attention/store.h.
#pragma once

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "base/kv_cache.h"

namespace headrace {

// Below this the reciprocal of a scale would overflow; such a token's head counts as zeros.
inline constexpr float kSmallestKV = 0x1p-100f;

// The scale of codes in [-127, 127] for values up to `magnitude`: magnitude / 127 with sixteen bits
// of mantissa, so that 127 * scale is exact and a stored token quantises to itself again. A NaN or
// an infinity stays one.
HR_ALWAYS_INLINE float kv_scale(float magnitude) {
  if (magnitude < kSmallestKV) return 0.0f;
  const float scale = magnitude / 127.0f;
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if (bits >= 0x7f800000u) return scale;
  return std::bit_cast<float>((bits + 0x80u) & ~0xffu);
}

// Codes are rint(x * this). 0 where all codes are 0.
HR_ALWAYS_INLINE float kv_inverse(float magnitude) {
  const bool is_usable = magnitude >= kSmallestKV && magnitude <= 3.402823466e38f;
  return is_usable ? 127.0f / magnitude : 0.0f;
}

// Byte offsets of element d of token t (in 0..15) from the tile's start.
HR_ALWAYS_INLINE int64_t key_offset(const KVTileShape& shape, int64_t d, int64_t t) {
  const int64_t unit = shape.key_unit;
  return ((d / unit * kKeyTile + t) * unit + d % unit) * shape.element;
}
HR_ALWAYS_INLINE int64_t value_offset(const KVTileShape& shape, int size, int64_t d, int64_t t) {
  const int64_t unit = shape.value_unit;
  return shape.values + ((t / unit * size + d) * unit + t % unit) * shape.element;
}

// Calls fn(is_value, d, offset) for every element of a token.
template <typename Fn>
HR_ALWAYS_INLINE void for_each_element(const KVTileShape& shape, int size, int64_t t, Fn fn) {
  for (int d = 0; d < size; ++d) fn(false, d, key_offset(shape, d, t));
  for (int d = 0; d < size; ++d) fn(true, d, value_offset(shape, size, d, t));
}

HR_ALWAYS_INLINE void load_token(const KVLayout& layout, const KVTileShape& shape,
                                 const std::byte* tile, int64_t t, float* key, float* value) {
  float scales[2] = {1.0f, 1.0f};
  if (layout.dtype == DType::kInt8) {
    std::memcpy(&scales[0], tile + shape.key_scales + t * 4, 4);
    std::memcpy(&scales[1], tile + shape.value_scales + t * 4, 4);
  }
  for_each_element(shape, layout.head_size, t, [&](bool is_value, int d, int64_t offset) {
    float* out = is_value ? value : key;
    uint16_t half;
    switch (layout.dtype) {
      case DType::kInt8: {
        const int raw = std::to_integer<int>(tile[offset]);
        const int code = is_value ? static_cast<int8_t>(raw) : raw - 128;
        out[d] = scales[is_value] * static_cast<float>(code);
        break;
      }
      case DType::kBF16:
        std::memcpy(&half, tile + offset, 2);
        out[d] = float_from_bf16(half);
        break;
      case DType::kF16:
        std::memcpy(&half, tile + offset, 2);
        out[d] = float_from_f16(half);
        break;
      default:
        std::memcpy(out + d, tile + offset, 4);
    }
  });
}

HR_ALWAYS_INLINE float largest_magnitude(const float* x, int size) {
  uint32_t largest = 0;  // as bits: a NaN is larger than infinity and never lost
  for (int d = 0; d < size; ++d) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[d]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<float>(largest);
}

HR_ALWAYS_INLINE void store_token(const KVLayout& layout, const KVTileShape& shape, std::byte* tile,
                                  int64_t t, const float* key, const float* value) {
  const bool is_int8 = layout.dtype == DType::kInt8;
  float inverses[2] = {};
  if (is_int8) {
    const float magnitudes[2] = {largest_magnitude(key, layout.head_size),
                                 largest_magnitude(value, layout.head_size)};
    for (int i = 0; i < 2; ++i) {
      const float scale = kv_scale(magnitudes[i]);
      inverses[i] = kv_inverse(magnitudes[i]);
      std::memcpy(tile + (i == 0 ? shape.key_scales : shape.value_scales) + t * 4, &scale, 4);
    }
  }
  for_each_element(shape, layout.head_size, t, [&](bool is_value, int d, int64_t offset) {
    const float x = is_value ? value[d] : key[d];
    uint16_t half = 0;
    switch (layout.dtype) {
      case DType::kInt8: {
        const float inverse = inverses[is_value];
        const int code = inverse == 0.0f ? 0 : static_cast<int>(std::nearbyint(x * inverse));
        tile[offset] = static_cast<std::byte>(is_value ? code : code + 128);
        break;
      }
      case DType::kBF16:
      case DType::kF16:
        half = layout.dtype == DType::kBF16 ? bf16_from_float(x) : f16_from_float(x);
        std::memcpy(tile + offset, &half, 2);
        break;
      default:
        std::memcpy(tile + offset, &x, 4);
    }
  });
}

}  // namespace headrace
