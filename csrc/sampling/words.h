// Words: sixteen 32-bit integers, for hashing token ids, and the logarithm that needs a float's
// bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/simd.h"

namespace headrace::HR_ISA {

#if defined(HR_ISA_AVX512)

struct Words {
  __m512i v;
};
HR_INLINE Words words(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
HR_INLINE Words load_words(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
HR_INLINE Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
HR_INLINE Words operator*(Words a, Words b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
HR_INLINE Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
HR_INLINE Words operator&(Words a, Words b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int N>
HR_INLINE Words shift_right(Words a) {
  return {_mm512_srli_epi32(a.v, N)};
}
HR_INLINE Vec to_float(Words a) { return {_mm512_cvtepi32_ps(a.v)}; }
HR_INLINE Words bits_of(Vec a) { return {_mm512_castps_si512(a.v)}; }
HR_INLINE Vec float_of(Words a) { return {_mm512_castsi512_ps(a.v)}; }

#elif defined(HR_ISA_AVX2)

struct Words {
  __m256i lo, hi;
};
HR_INLINE Words words(uint32_t x) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(x));
  return {all, all};
}
HR_INLINE Words load_words(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
HR_INLINE Words operator+(Words a, Words b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
HR_INLINE Words operator*(Words a, Words b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
HR_INLINE Words operator^(Words a, Words b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
HR_INLINE Words operator&(Words a, Words b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int N>
HR_INLINE Words shift_right(Words a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
HR_INLINE Vec to_float(Words a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
HR_INLINE Words bits_of(Vec a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
HR_INLINE Vec float_of(Words a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

#else

struct Words {
  alignas(16) uint32_t v[16];
};
#define HR_LANES for (int i = 0; i < 16; ++i)
HR_INLINE Words words(uint32_t x) {
  Words r;
  HR_LANES r.v[i] = x;
  return r;
}
HR_INLINE Words load_words(const int32_t* p) {
  Words r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
HR_INLINE Words operator+(Words a, Words b) {
  HR_LANES a.v[i] += b.v[i];
  return a;
}
HR_INLINE Words operator*(Words a, Words b) {
  HR_LANES a.v[i] *= b.v[i];
  return a;
}
HR_INLINE Words operator^(Words a, Words b) {
  HR_LANES a.v[i] ^= b.v[i];
  return a;
}
HR_INLINE Words operator&(Words a, Words b) {
  HR_LANES a.v[i] &= b.v[i];
  return a;
}
template <int N>
HR_INLINE Words shift_right(Words a) {
  HR_LANES a.v[i] >>= N;
  return a;
}
HR_INLINE Vec to_float(Words a) {
  float lanes[16];
  HR_LANES lanes[i] = static_cast<float>(static_cast<int32_t>(a.v[i]));
  return load(lanes);
}
HR_INLINE Words bits_of(Vec a) {
  Words r;
  std::memcpy(r.v, a.v, sizeof(r.v));
  return r;
}
HR_INLINE Vec float_of(Words a) {
  Vec r;
  std::memcpy(r.v, a.v, sizeof(r.v));
  return r;
}
#undef HR_LANES

#endif

// first, first + 1, ...
HR_INLINE Words counting(int32_t first) {
  static constexpr int32_t kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_words(kIndex) + words(static_cast<uint32_t>(first));
}

// Natural logarithm of positive normal numbers, within 2 units in the last place, also near 1. The
// mantissa is taken in [sqrt(1/2), sqrt(2)); polynomial of Cephes logf (S. Moshier).
HR_INLINE Vec log(Vec x) {
  constexpr uint32_t kOne = 0x3f800000u, kRootHalf = 0x3f3504f3u;
  const Words shifted = bits_of(x) + words(kOne - kRootHalf);
  const Vec e = to_float(shift_right<23>(shifted)) - splat(127.0f);
  const Vec f = float_of((shifted & words(0x007fffffu)) + words(kRootHalf)) - splat(1.0f);
  Vec p = splat(7.0376836292e-2f);
  p = fma(p, f, splat(-1.1514610310e-1f));
  p = fma(p, f, splat(1.1676998740e-1f));
  p = fma(p, f, splat(-1.2420140846e-1f));
  p = fma(p, f, splat(1.4249322787e-1f));
  p = fma(p, f, splat(-1.6668057665e-1f));
  p = fma(p, f, splat(2.0000714765e-1f));
  p = fma(p, f, splat(-2.4999993993e-1f));
  p = fma(p, f, splat(3.3333331174e-1f));
  const Vec square = f * f;
  Vec y = p * f * square;
  y = fma(e, splat(-2.12194440e-4f), y);
  y = fma(square, splat(-0.5f), y);
  return fma(e, splat(0.693359375f), f + y);
}

}  // namespace headrace::HR_ISA
