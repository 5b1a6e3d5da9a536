// The sampling noise: a hash of (seed, output position, token id). A contract for ever; it is
// written down in src/headrace/kernels/reference/noise.py.
#pragma once

#include "sampling/words.h"

namespace headrace::HR_ISA {

// No noise exceeds this: -log(-log(1 - 2^-24)) = 16.6355..., rounded up with room for the last
// place.
inline constexpr float kLargestNoise = 16.636f;

HR_INLINE uint64_t splitmix64(uint64_t state) {
  uint64_t z = state + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

HR_INLINE uint64_t row_key(uint64_t seed, int64_t position) {
  return splitmix64(seed ^ splitmix64(static_cast<uint64_t>(position)));
}

HR_INLINE Words mix32(Words x) {
  x = x ^ shift_right<16>(x);
  x = x * words(0x7feb352du);
  x = x ^ shift_right<15>(x);
  x = x * words(0x846ca68bu);
  return x ^ shift_right<16>(x);
}

// Thirty-two random bits of each of sixteen tokens.
HR_INLINE Words hash_tokens(uint64_t key, Words token_ids) {
  const Words x = mix32(token_ids + words(static_cast<uint32_t>(key)));
  return mix32(x ^ words(static_cast<uint32_t>(key >> 32)));
}

// Standard Gumbel noise, -log(-log u) with u = ((hash >> 9) + 0.5) * 2^-23.
HR_INLINE Vec gumbel(Words hash) {
  const Vec uniform = (to_float(shift_right<9>(hash)) + splat(0.5f)) * splat(0x1p-23f);
  return zero() - log(zero() - log(uniform));
}

// 1 - u in units of 2^-23, less a half: 0 for the largest noise.
HR_INLINE Vec rarity_of(Words hash) { return to_float(shift_right<9>(hash ^ words(0xffffffffu))); }

}  // namespace headrace::HR_ISA
