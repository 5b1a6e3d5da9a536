// Vec for AVX2 with FMA and F16C: two registers. See simd.h.
#pragma once

#include <immintrin.h>

namespace headrace::HR_ISA {

inline constexpr int kLanes = 16;

struct Vec {
  __m256 lo, hi;
};
struct Mask {
  __m256 lo, hi;  // all bits of a lane set or clear
};

HR_INLINE Mask first_lanes(int n) {  // 0 <= n <= 16
  const __m256i count = _mm256_set1_epi32(n);
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, index)),
          _mm256_castsi256_ps(
              _mm256_cmpgt_epi32(count, _mm256_add_epi32(index, _mm256_set1_epi32(8))))};
}

HR_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HR_INLINE Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
HR_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HR_INLINE Vec load(const float* p, Mask k) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(k.lo)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(k.hi))};
}
HR_INLINE void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
HR_INLINE void store(float* p, Vec a, Mask k) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(k.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(k.hi), a.hi);
}

HR_INLINE int lane_bits(Mask k) { return _mm256_movemask_ps(k.lo) | _mm256_movemask_ps(k.hi) << 8; }

// The set has no masked 16-bit moves: partial rows go through the stack. `k` is a first_lanes mask.
HR_INLINE __m256i load_16bit(const uint16_t* p, Mask k) {
  alignas(32) uint16_t lanes[16] = {};
  const int count = __builtin_popcount(static_cast<unsigned>(lane_bits(k)));
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes));
}
HR_INLINE void store_16bit(uint16_t* p, __m256i bits, Mask k) {
  alignas(32) uint16_t lanes[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), bits);
  const int count = __builtin_popcount(static_cast<unsigned>(lane_bits(k)));
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

HR_INLINE Vec widen_f16(__m256i bits) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}
HR_INLINE Vec load_f16(const uint16_t* p) {
  return widen_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HR_INLINE Vec load_f16(const uint16_t* p, Mask k) { return widen_f16(load_16bit(p, k)); }
HR_INLINE __m256i bits_f16(Vec a) {
  const __m128i lo = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m128i hi = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm256_set_m128i(hi, lo);
}
HR_INLINE void store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits_f16(a));
}
HR_INLINE void store_f16(uint16_t* p, Vec a, Mask k) { store_16bit(p, bits_f16(a), k); }

HR_INLINE Vec widen_bf16(__m256i bits) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(bits));
  const __m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(bits, 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
HR_INLINE Vec load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HR_INLINE Vec load_bf16(const uint16_t* p, Mask k) { return widen_bf16(load_16bit(p, k)); }
HR_INLINE __m256i round_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256 chosen =
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
}
HR_INLINE __m256i bits_bf16(Vec a) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(a.lo), round_bf16(a.hi));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}
HR_INLINE void store_bf16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits_bf16(a));
}
HR_INLINE void store_bf16(uint16_t* p, Vec a, Mask k) { store_16bit(p, bits_bf16(a), k); }

HR_INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
HR_INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
HR_INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
HR_INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
HR_INLINE Vec fma(Vec a, Vec b, Vec c) {  // a * b + c
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
HR_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
HR_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
HR_INLINE Vec abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
HR_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
HR_INLINE Vec round(Vec a) {  // to nearest even
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HR_INLINE Mask operator<(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
HR_INLINE bool any(Mask k) { return lane_bits(k) != 0; }
HR_INLINE Vec select(Mask k, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, k.lo), _mm256_blendv_ps(no.hi, yes.hi, k.hi)};
}
HR_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  const Vec plain = abs(magnitude);
  return {_mm256_or_ps(plain.lo, _mm256_and_ps(sign.lo, bit)),
          _mm256_or_ps(plain.hi, _mm256_and_ps(sign.hi, bit))};
}
HR_INLINE __m256 power_of_two(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
// 2^n for whole n in [-126, 127].
HR_INLINE Vec power_of_two(Vec n) { return {power_of_two(n.lo), power_of_two(n.hi)}; }

// Tree: lane i with i + 8, then 4, 2, 1; the same in every instruction set.
HR_INLINE float reduce_add(Vec a) {
  const __m256 x = _mm256_add_ps(a.lo, a.hi);
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
HR_INLINE float reduce_max(Vec a) {
  const __m256 x = _mm256_max_ps(a.lo, a.hi);
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

// Two times sixteen codes, rounded to nearest even and saturated to [-128, 127]. `sums` gets the
// sum of each sixteen.
HR_INLINE __m128i code_bytes(Vec whole) {
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(whole.lo), _mm256_cvtps_epi32(whole.hi)), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
HR_INLINE void store_codes(int8_t* p, Vec first, Vec second, int32_t* sums) {
  const __m256i bytes =
      _mm256_inserti128_si256(_mm256_castsi128_si256(code_bytes(first)), code_bytes(second), 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  // Sums of four: bytes in pairs to words, words in pairs to integers.
  __m256i sum =
      _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
  sums[0] = _mm256_cvtsi256_si32(sum);
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
}

// The larger of two as sign-less bit patterns: NaN counts as larger than infinity, so it is never
// lost.
HR_INLINE __m256 max_bits(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
HR_INLINE Vec max_magnitude(Vec a, Vec b) {
  const Vec x = abs(a), y = abs(b);
  return {max_bits(x.lo, y.lo), max_bits(x.hi, y.hi)};
}
HR_INLINE float reduce_max_magnitude(Vec a) {
  const Vec x = abs(a);
  __m256i y = _mm256_castps_si256(max_bits(x.lo, x.hi));
  __m128i z = _mm_max_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  z = _mm_max_epi32(z, _mm_shuffle_epi32(z, 0x4e));
  z = _mm_max_epi32(z, _mm_shuffle_epi32(z, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(z));
}

}  // namespace headrace::HR_ISA
