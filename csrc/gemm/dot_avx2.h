// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, with AVX2.
//
// vpmaddubsw adds two products of an unsigned weight and a signed code into 16 bits. A nibble times
// a code is at most 15 * 128, so eight quads fit without saturation: 8 * 2 * 15 * 128 = 30,720.
// Codes of 8 bits are multiplied as two nibbles.
#pragma once

#include <immintrin.h>

#include "base/simd.h"
#include "gemm/operand.h"

namespace headrace::HR_ISA {

struct IntVec {
  __m256i lo, hi;
};

HR_INLINE IntVec splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
HR_INLINE Vec to_float(IntVec a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

HR_INLINE __m256i broadcast_quad(const Codes& row, int quad) {
  int32_t four;
  std::memcpy(&four, row + 4 * quad, 4);
  return _mm256_set1_epi32(four);
}

HR_INLINE __m256i load_codes(const std::byte* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// Between the halves of a panel: keeps the compiler from saving the broadcasts of the first half
// for the second, which would fill the stack with what a load can bring.
HR_INLINE void forget_loads() { asm volatile("" ::: "memory"); }

// Keeps a sum in its register: the compiler would collect all products first and add them up as a
// tree.
HR_INLINE void pin(__m256i& sum) { asm("" : "+x"(sum)); }

// One half of a panel, 8 outputs.
template <int MR>
HR_INLINE void dot_w4_half(const std::byte* codes, const Codes (&x)[MR], __m256i (&sum)[MR]) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) sum[m] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i pair = load_codes(codes + 64 * i);
    const __m256i even = _mm256_and_si256(pair, low);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      sum[m] = _mm256_add_epi16(sum[m], _mm256_maddubs_epi16(even, broadcast_quad(x[m], 2 * i)));
      pin(sum[m]);
      sum[m] = _mm256_add_epi16(sum[m], _mm256_maddubs_epi16(odd, broadcast_quad(x[m], 2 * i + 1)));
      pin(sum[m]);
    }
  }
}

// dot[m] = start[m] + the sum over 32 inputs of code * x; `codes` is 256 bytes, low nibbles the
// even quads.
template <int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Codes (&x)[MR], const int32_t (&start)[MR],
                      IntVec (&dot)[MR]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[MR];
  dot_w4_half<MR>(codes, x, sum);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    dot[m].lo = _mm256_add_epi32(_mm256_set1_epi32(start[m]), _mm256_madd_epi16(sum[m], ones));
  }
  forget_loads();
  dot_w4_half<MR>(codes + 32, x, sum);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    dot[m].hi = _mm256_add_epi32(_mm256_set1_epi32(start[m]), _mm256_madd_epi16(sum[m], ones));
  }
}

// 8-bit codes, 8 outputs: sums over the quads [kFirst, kFirst + kQuads), low and high nibbles put
// together.
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8_half(const std::byte* codes, const Codes (&x)[MR], __m256i (&dot)[MR]) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i fine[MR], coarse[MR];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) fine[m] = coarse[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
    const __m256i weight = load_codes(codes + 64 * quad);
    const __m256i lower = _mm256_and_si256(weight, low);
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(weight, 4), low);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const __m256i four = broadcast_quad(x[m], quad);
      fine[m] = _mm256_add_epi16(fine[m], _mm256_maddubs_epi16(lower, four));
      coarse[m] = _mm256_add_epi16(coarse[m], _mm256_maddubs_epi16(upper, four));
      pin(fine[m]);
      pin(coarse[m]);
    }
  }
  const __m256i ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    dot[m] =
        _mm256_add_epi32(_mm256_madd_epi16(fine[m], ones), _mm256_madd_epi16(coarse[m], sixteens));
  }
}

// As dot_w4 for 8-bit codes, over the quads [kFirst, kFirst + kQuads).
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Codes (&x)[MR], const int32_t (&start)[MR],
                      IntVec (&dot)[MR]) {
  __m256i part[MR];
  dot_w8_half<kFirst, kQuads, MR>(codes, x, part);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m].lo = _mm256_add_epi32(_mm256_set1_epi32(start[m]), part[m]);
  forget_loads();
  dot_w8_half<kFirst, kQuads, MR>(codes + 32, x, part);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m].hi = _mm256_add_epi32(_mm256_set1_epi32(start[m]), part[m]);
}

}  // namespace headrace::HR_ISA
