// What differs between instruction sets in the products of bf16 and int8: sixteen words of four
// bytes, each two bf16 or four (two) codes, times one such word of a query (of weights).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/simd.h"
#if defined(__SSE2__)
#include <emmintrin.h>  // part of every x86-64
#elif defined(__ARM_NEON)
#include <arm_neon.h>  // part of every 64-bit Arm, so that the generic set has it, too
#endif

namespace headrace::HR_ISA {

// Sixteen pairs of bf16, widened.
struct VecPair {
  Vec first, second;
};

HR_INLINE uint32_t word_at(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(HR_ISA_AVX512)

HR_INLINE VecPair load_pairs(const std::byte* p) {
  const __m512i words = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))}};
}

struct IntVec {
  __m512i v;
};
using KeyCodes = __m512i;    // sixteen quads of unsigned codes
using CodePairs = __m512i;   // sixteen pairs of signed codes of 16 bits
using CodeQuad = __m512i;    // one quad of a query, in every lane
using WeightPair = __m512i;  // two weights or codes of a query of 16 bits, in every lane

HR_INLINE IntVec splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
HR_INLINE Vec to_float(IntVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
HR_INLINE KeyCodes load_key_codes(const std::byte* p) { return _mm512_loadu_si512(p); }
HR_INLINE CodePairs load_wide_pairs(const std::byte* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HR_INLINE CodePairs load_code_pairs(const std::byte* p) { return _mm512_loadu_si512(p); }
HR_INLINE CodeQuad splat_quad(const int8_t* p) {
  return _mm512_set1_epi32(static_cast<int32_t>(word_at(p)));
}
HR_INLINE WeightPair splat_weights(const int16_t* p) {
  return _mm512_set1_epi32(static_cast<int32_t>(word_at(p)));
}
// In assembly, because the compiler copies the sum before each of these instructions, and then runs
// out of registers.
HR_INLINE IntVec dot_quads(KeyCodes keys, CodeQuad query, IntVec sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(keys), "v"(query));
  return sum;
}
HR_INLINE IntVec dot_pairs(CodePairs values, WeightPair weights, IntVec sum) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(values), "v"(weights));
  return sum;
}
// Sixteen numbers that round (to nearest even) to [-32768, 32767].
HR_INLINE void store_int16(int16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x.v)));
}

#elif defined(HR_ISA_AVX2)

HR_INLINE VecPair load_pairs(const std::byte* p) {
  const __m256i high = _mm256_set1_epi32(-65536);
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(lo, high)),
           _mm256_castsi256_ps(_mm256_and_si256(hi, high))}};
}

struct IntVec {
  __m256i lo, hi;
};
// vpmaddubsw would saturate: codes are multiplied as 16 bits, even and odd ones of a quad apart.
struct KeyCodes {
  __m256i even_lo, even_hi, odd_lo, odd_hi;
};
struct CodePairs {
  __m256i lo, hi;
};
struct CodeQuad {
  __m256i even, odd;
};
using WeightPair = __m256i;

HR_INLINE IntVec splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
HR_INLINE Vec to_float(IntVec a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
HR_INLINE KeyCodes load_key_codes(const std::byte* p) {
  const __m256i low = _mm256_set1_epi16(255);
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  return {_mm256_and_si256(lo, low), _mm256_and_si256(hi, low), _mm256_srli_epi16(lo, 8),
          _mm256_srli_epi16(hi, 8)};
}
HR_INLINE CodePairs load_wide_pairs(const std::byte* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
HR_INLINE CodePairs load_code_pairs(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
HR_INLINE CodeQuad splat_quad(const int8_t* p) {
  const __m256i four = _mm256_set1_epi32(static_cast<int32_t>(word_at(p)));
  return {_mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), _mm256_srai_epi16(four, 8)};
}
HR_INLINE WeightPair splat_weights(const int16_t* p) {
  return _mm256_set1_epi32(static_cast<int32_t>(word_at(p)));
}
HR_INLINE IntVec dot_quads(const KeyCodes& keys, CodeQuad query, IntVec sum) {
  sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(keys.even_lo, query.even));
  sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(keys.even_hi, query.even));
  sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(keys.odd_lo, query.odd));
  sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(keys.odd_hi, query.odd));
  return sum;
}
HR_INLINE IntVec dot_pairs(CodePairs values, WeightPair weights, IntVec sum) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(values.lo, weights)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(values.hi, weights))};
}
HR_INLINE void store_int16(int16_t* p, Vec x) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else  // any machine: vectors of four lanes, which the compiler maps to what there is

#define HR_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Short8 = int16_t __attribute__((vector_size(16)));
using VecPart = decltype(Vec{}.v[0] + Vec{}.v[0]);  // of NEON a type of its own

struct IntVec {
  Int4 v[4];
};

HR_INLINE IntVec load_words(const std::byte* p) {
  IntVec words;
  std::memcpy(words.v, p, sizeof(words.v));
  return words;
}
HR_INLINE VecPair load_pairs(const std::byte* p) {
  const IntVec words = load_words(p);
  VecPair pair;
  HR_PARTS pair.first.v[i] = (VecPart)(words.v[i] << 16);
  HR_PARTS pair.second.v[i] = (VecPart)(words.v[i] & -65536);
  return pair;
}

// Widened to floats, which hold products and sums up to 2^24 exactly; longer sums are integers.
struct KeyCodes {
  Float4 v[4][4];  // [code of the quad][four keys]
};
struct CodeQuad {
  float v[4];
};
struct CodePairs {
  Short8 v[4];
};
using WeightPair = Short8;

// Per lane of four bytes the sum of the products of its two pairs of 16 bits.
HR_INLINE Int4 multiply_pairs(Short8 a, Short8 b) {
#if defined(__SSE2__)
  return (Int4)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  const auto x = (int16x8_t)a, y = (int16x8_t)b;
  return (Int4)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const Int4 x = (Int4)a, y = (Int4)b;
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

HR_INLINE IntVec splat_int(int32_t x) {
  IntVec r;
  HR_PARTS r.v[i] = Int4{x, x, x, x};
  return r;
}
HR_INLINE Vec to_float(IntVec a) {
  Vec r;
  HR_PARTS r.v[i] = (VecPart) __builtin_convertvector(a.v[i], Float4);
  return r;
}
HR_INLINE KeyCodes load_key_codes(const std::byte* p) {
  const IntVec words = load_words(p);
  KeyCodes keys;
  for (int k = 0; k < 4; ++k) {
    HR_PARTS keys.v[k][i] = __builtin_convertvector((words.v[i] >> 8 * k) & 255, Float4);
  }
  return keys;
}
HR_INLINE CodePairs load_wide_pairs(const std::byte* p) {
  using Byte8 = int8_t __attribute__((vector_size(8)));
  Byte8 codes[4];
  std::memcpy(codes, p, sizeof(codes));
  CodePairs values;
  HR_PARTS values.v[i] = __builtin_convertvector(codes[i], Short8);
  return values;
}
HR_INLINE CodePairs load_code_pairs(const std::byte* p) {
  CodePairs pairs;
  std::memcpy(pairs.v, p, sizeof(pairs.v));
  return pairs;
}
HR_INLINE CodeQuad splat_quad(const int8_t* p) {
  CodeQuad quad;
  for (int k = 0; k < 4; ++k) quad.v[k] = static_cast<float>(p[k]);
  return quad;
}
HR_INLINE WeightPair splat_weights(const int16_t* p) {
  const auto both = static_cast<int32_t>(word_at(p));
  return (WeightPair)Int4{both, both, both, both};
}
HR_INLINE IntVec dot_quads(const KeyCodes& keys, CodeQuad query, IntVec sum) {
  HR_PARTS {
    const Float4 dot = keys.v[0][i] * query.v[0] + keys.v[1][i] * query.v[1] +
                       keys.v[2][i] * query.v[2] + keys.v[3][i] * query.v[3];
    sum.v[i] += __builtin_convertvector(dot, Int4);
  }
  return sum;
}
HR_INLINE IntVec dot_pairs(const CodePairs& values, WeightPair weights, IntVec sum) {
  HR_PARTS sum.v[i] += multiply_pairs(values.v[i], weights);
  return sum;
}
HR_INLINE void store_int16(int16_t* p, Vec x) {
  float lanes[kLanes];
  int16_t codes[kLanes];
  store(lanes, round(x));
  for (int i = 0; i < kLanes; ++i) codes[i] = static_cast<int16_t>(lanes[i]);
  std::memcpy(p, codes, sizeof(codes));
}

#undef HR_PARTS

#endif

}  // namespace headrace::HR_ISA
