// One token's key and value of one head, rounded to the cache's dtype and put in their places.
#pragma once

#include <cstring>

#include "attention/words.h"
#include "base/kv_token.h"
#include "base/quantize.h"

namespace headrace::HR_ISA {

// Words of a key go 16 words apart: the tokens of a tile lie innermost.
template <typename Word>
HR_INLINE void scatter_key(const std::byte* row, int64_t words, std::byte* tile, int64_t t) {
  auto* out = reinterpret_cast<Word*>(tile) + t;
  for (int64_t i = 0; i < words; ++i) {
    Word word;
    std::memcpy(&word, row + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    out[i * kKeyTile] = word;
  }
}

// Elements of a value go two apart, beside those of the other token of the pair.
template <typename Element>
HR_INLINE void scatter_value(const Element* row, int size, std::byte* values, int64_t t) {
  auto* out = reinterpret_cast<Element*>(values) + t / 2 * 2 * size + t % 2;
  for (int d = 0; d < size; ++d) out[2 * d] = row[d];
}

// Codes of one head, `bias` added modulo 256, padded with zeros to a multiple of 32; returns the
// scale.
HR_INLINE float quantize_head(const float* x, int size, uint8_t bias, uint8_t* codes) {
  Vec largest = zero();
  for (int i = 0; i < size; i += kLanes) {
    const int rest = size - i;
    largest = max_magnitude(largest, load(x + i, first_lanes(rest < kLanes ? rest : kLanes)));
  }
  const float magnitude = reduce_max_magnitude(largest);
  const float inverse = kv_inverse(magnitude);
  const Vec factor = splat(inverse);
  const auto part = [&](int i) {
    const int rest = size - i < 0 ? 0 : size - i;
    const Vec x16 = load(x + i, first_lanes(rest < kLanes ? rest : kLanes));
    return inverse == 0.0f ? zero() : x16 * factor;
  };
  for (int i = 0; i < size; i += 2 * kLanes) {
    int32_t sums[2];
    store_codes(reinterpret_cast<int8_t*>(codes) + i, part(i), part(i + kLanes), sums);
  }
  if (bias != 0) {
    for (int i = 0; i < size; ++i) codes[i] = static_cast<uint8_t>(codes[i] + bias);
  }
  return kv_scale(magnitude);
}

// Codes of 16 bits of one head, a value or a key, padded with zeros to a multiple of 16;
// returns the step. The same bits as quantise_token.
HR_INLINE float quantize_pairs(const float* x, int size, bool is_value, int16_t* codes) {
  Vec largest = zero();
  const auto part = [&](int i) {
    const int rest = size - i;
    return load(x + i, first_lanes(rest < kLanes ? rest : kLanes));
  };
  for (int i = 0; i < size; i += kLanes) largest = max_magnitude(largest, part(i));
  const float magnitude = reduce_max_magnitude(largest);
  if (!has_step(magnitude)) {
    for (int i = 0; i < size; i += kLanes) store_int16(codes + i, zero());
    return missing_step(magnitude);
  }
  for (float step = kv_step(magnitude, is_value ? kValueBits : kKeyBits);; step *= 2.0f) {
    const Vec inverse = splat(1.0f / step);
    for (int i = 0; i < size; i += kLanes) store_int16(codes + i, part(i) * inverse);
    if (is_value || do_keys_fit(codes, size)) return step;
  }
}

// `tile` is the token's tile and t its place in there. The same bits as store_token.
HR_INLINE void store_head(const KVCache& kv, std::byte* tile, int64_t t, const float* key,
                          const float* value) {
  const int size = kv.layout().head_size;
  const DType dtype = kv.layout().dtype;
  const KVTileShape& shape = kv.tile_shape();
  alignas(64) std::byte row[kMaxHeadSize * 2];
  if (dtype == DType::kF32) {
    scatter_key<float>(reinterpret_cast<const std::byte*>(key), size, tile, t);
    std::memcpy(tile + value_offset(shape, size, 0, t), value,
                static_cast<size_t>(size) * sizeof(float));
    return;
  }
  if (dtype == DType::kInt8) {
    auto* codes = reinterpret_cast<uint8_t*>(row);
    float scale = quantize_head(key, size, 128, codes);
    scatter_key<uint32_t>(row, (size + 3) / 4, tile, t);
    std::memcpy(tile + shape.key_scales + t * 4, &scale, 4);
    scale = quantize_head(value, size, 0, codes);
    scatter_value(codes, size, tile + shape.values, t);
    std::memcpy(tile + shape.value_scales + t * 4, &scale, 4);
    return;
  }
  if (dtype == DType::kInt16) {
    auto* codes = reinterpret_cast<int16_t*>(row);
    float step = quantize_pairs(key, size, false, codes);
    scatter_key<uint32_t>(row, (size + 1) / 2, tile, t);
    std::memcpy(tile + shape.key_scales + t * 4, &step, 4);
    step = quantize_pairs(value, size, true, codes);
    scatter_value(codes, size, tile + shape.values, t);
    std::memcpy(tile + shape.value_scales + t * 4, &step, 4);
    return;
  }
  store_row(key, size, dtype, row);
  if (dtype == DType::kF16) {
    scatter_key<uint16_t>(row, size, tile, t);
    store_row(value, size, dtype, tile + value_offset(shape, size, 0, t));
    return;
  }
  if (size % 2 != 0) std::memset(row + 2 * size, 0, 2);
  scatter_key<uint32_t>(row, (size + 1) / 2, tile, t);
  store_row(value, size, dtype, row);
  scatter_value(reinterpret_cast<const uint16_t*>(row), size, tile + shape.values, t);
}

}  // namespace headrace::HR_ISA
