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

// Codes of 16 bits: x is about step * code, the step a power of two. Above this a head is a fault.
inline constexpr float kLargestKV = 0x1p100f;
// Of the codes of a value, so that 512 of them times weights fit 32 bits (attention/formats.h).
inline constexpr int kValueBits = 13;
// Where the search for the step of a key begins.
inline constexpr int kKeyBits = 14;

HR_ALWAYS_INLINE bool has_step(float magnitude) {
  return magnitude >= kSmallestKV && magnitude <= kLargestKV;
}
// The smallest power of two with which no code is rounded up to 2^bits.
HR_ALWAYS_INLINE float kv_step(float magnitude, int bits) {
  const uint32_t power = (std::bit_cast<uint32_t>(magnitude) + (1u << (23 - bits))) & 0x7f800000u;
  return std::bit_cast<float>(power) * (2.0f / static_cast<float>(1 << bits));
}
// Of a head without a step: zeros, or a fault.
HR_ALWAYS_INLINE float missing_step(float magnitude) {
  return magnitude < kSmallestKV ? 0.0f : __builtin_nanf("");
}

// Whether the norm of a key's codes leaves dot products with them room in 32 bits, by Cauchy and
// Schwarz: it is below 16 * 2047 + 15 * sqrt(D). Each code is then below 2^15. Codes that pass once
// pass again, so a stored key quantises to itself.
HR_ALWAYS_INLINE bool do_keys_fit(const int16_t* codes, int size) {
  int32_t sum = 0;
  for (int d = 0; d < size; ++d) {
    const auto part = static_cast<int16_t>((codes[d] < 0 ? -codes[d] : codes[d]) >> 4);
    sum += int32_t{part} * part;
  }
  return sum <= 2047 * 2047;
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
  const bool has_codes = has_scales(layout.dtype);
  float scales[2] = {1.0f, 1.0f};
  if (has_codes) {
    std::memcpy(&scales[0], tile + shape.key_scales + t * 4, 4);
    std::memcpy(&scales[1], tile + shape.value_scales + t * 4, 4);
  }
  for_each_element(shape, layout.head_size, t, [&](bool is_value, int d, int64_t offset) {
    float* out = is_value ? value : key;
    uint16_t half = 0;
    if (shape.element == 1) {
      const int raw = std::to_integer<int>(tile[offset]);
      const int code = is_value ? static_cast<int8_t>(raw) : raw - 128;
      out[d] = scales[is_value] * static_cast<float>(code);
      return;
    }
    if (shape.element == 4) {
      std::memcpy(out + d, tile + offset, 4);
      return;
    }
    std::memcpy(&half, tile + offset, 2);
    if (has_codes) {
      out[d] = scales[is_value] * static_cast<float>(static_cast<int16_t>(half));
    } else {
      out[d] = layout.dtype == DType::kBF16 ? float_from_bf16(half) : float_from_f16(half);
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

// Codes of x [size] times `inverse`, none if that is 0.
HR_ALWAYS_INLINE void round_codes(const float* x, int size, float inverse, int16_t* codes) {
  for (int d = 0; d < size; ++d) {
    codes[d] = inverse == 0.0f ? int16_t{0} : static_cast<int16_t>(std::nearbyint(x[d] * inverse));
  }
}

// Codes of one token's key or value x [size]; returns their scale.
HR_ALWAYS_INLINE float quantise_token(DType dtype, bool is_value, const float* x, int size,
                                      int16_t* codes) {
  const float magnitude = largest_magnitude(x, size);
  if (dtype == DType::kInt8) {
    round_codes(x, size, kv_inverse(magnitude), codes);
    return kv_scale(magnitude);
  }
  if (!has_step(magnitude)) {
    round_codes(x, size, 0.0f, codes);
    return missing_step(magnitude);
  }
  for (float step = kv_step(magnitude, is_value ? kValueBits : kKeyBits);; step *= 2.0f) {
    round_codes(x, size, 1.0f / step, codes);
    if (is_value || do_keys_fit(codes, size)) return step;
  }
}

HR_ALWAYS_INLINE void store_token(const KVLayout& layout, const KVTileShape& shape, std::byte* tile,
                                  int64_t t, const float* key, const float* value) {
  const bool has_codes = has_scales(layout.dtype);
  int16_t codes[2][kMaxHeadSize];
  if (has_codes) {
    const int size = layout.head_size;
    const float key_scale = quantise_token(layout.dtype, false, key, size, codes[0]);
    const float value_scale = quantise_token(layout.dtype, true, value, size, codes[1]);
    std::memcpy(tile + shape.key_scales + t * 4, &key_scale, 4);
    std::memcpy(tile + shape.value_scales + t * 4, &value_scale, 4);
  }
  for_each_element(shape, layout.head_size, t, [&](bool is_value, int d, int64_t offset) {
    const float x = is_value ? value[d] : key[d];
    uint16_t half = 0;
    if (shape.element == 1) {
      tile[offset] = static_cast<std::byte>(is_value ? codes[1][d] : codes[0][d] + 128);
    } else if (shape.element == 4) {
      std::memcpy(tile + offset, &x, 4);
    } else {
      if (has_codes) {
        half = static_cast<uint16_t>(codes[is_value][d]);
      } else {
        half = layout.dtype == DType::kBF16 ? bf16_from_float(x) : f16_from_float(x);
      }
      std::memcpy(tile + offset, &half, 2);
    }
  });
}

}  // namespace headrace
