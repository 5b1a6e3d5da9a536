// Vec for AVX-512 (F, BW, DQ, VL). See simd.h.
#pragma once

#include <immintrin.h>

namespace headrace::HR_ISA {

inline constexpr int kLanes = 16;

struct Vec {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};

HR_INLINE Mask first_lanes(int n) {
  return {static_cast<__mmask16>((1u << n) - 1u)};
}  // 0 <= n <= 16

HR_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
HR_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
HR_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
HR_INLINE Vec load(const float* p, Mask k) { return {_mm512_maskz_loadu_ps(k.m, p)}; }
HR_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
HR_INLINE void store(float* p, Vec a, Mask k) { _mm512_mask_storeu_ps(p, k.m, a.v); }

HR_INLINE Vec load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HR_INLINE Vec load_f16(const uint16_t* p, Mask k) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k.m, p))};
}
HR_INLINE __m256i bits_f16(Vec a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
HR_INLINE void store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits_f16(a));
}
HR_INLINE void store_f16(uint16_t* p, Vec a, Mask k) {
  _mm256_mask_storeu_epi16(p, k.m, bits_f16(a));
}

HR_INLINE Vec widen_bf16(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
HR_INLINE Vec load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HR_INLINE Vec load_bf16(const uint16_t* p, Mask k) {
  return widen_bf16(_mm256_maskz_loadu_epi16(k.m, p));
}
// Integer rounding, not vcvtneps2bf16: that one flushes subnormals.
HR_INLINE __m256i bits_bf16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
HR_INLINE void store_bf16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits_bf16(a));
}
HR_INLINE void store_bf16(uint16_t* p, Vec a, Mask k) {
  _mm256_mask_storeu_epi16(p, k.m, bits_bf16(a));
}

HR_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
HR_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
HR_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
HR_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
HR_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
HR_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
HR_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
HR_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
HR_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
HR_INLINE Vec round(Vec a) {  // to nearest even
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HR_INLINE Mask operator<(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
HR_INLINE bool any(Mask k) { return k.m != 0; }
HR_INLINE Vec select(Mask k, Vec yes, Vec no) { return {_mm512_mask_blend_ps(k.m, no.v, yes.v)}; }
HR_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return {_mm512_or_ps(_mm512_abs_ps(magnitude.v), _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
// 2^n for whole n in [-126, 127].
HR_INLINE Vec power_of_two(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

// x * 2^n for whole n.
HR_INLINE Vec scale_by_power(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }

// Tree: lane i with i + 8, then 4, 2, 1; the same in every instruction set.
HR_INLINE float reduce_add(Vec a) {
  __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
HR_INLINE float reduce_max(Vec a) {
  __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

// Two times sixteen codes, rounded to nearest even and saturated to [-128, 127]. `sums` gets the
// sum of each sixteen.
HR_INLINE void store_codes(int8_t* p, Vec first, Vec second, int32_t* sums) {
  const __m128i low = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(first.v));
  const __m128i high = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(second.v));
  const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  __m256i sum = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
  sums[0] = _mm256_cvtsi256_si32(sum);
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
}

// The larger of two as sign-less bit patterns: NaN counts as larger than infinity, so it is never
// lost.
HR_INLINE Vec max_magnitude(Vec a, Vec b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a.v)),
                                               _mm512_castps_si512(_mm512_abs_ps(b.v))))};
}
HR_INLINE float reduce_max_magnitude(Vec a) {
  const __m512i bits = _mm512_castps_si512(_mm512_abs_ps(a.v));
  const __m256i x =
      _mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
  __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(y));
}

}  // namespace headrace::HR_ISA
