// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, with AVX2.
//
// vpmaddubsw adds two products of an unsigned weight and a signed code into 16 bits. A nibble times
// a code is at most 15 * 128, so eight quads fit without saturation: 8 * 2 * 15 * 128 = 30,720.
// Weights of 8 bits are multiplied as two nibbles.
#pragma once

#include <immintrin.h>

#include "base/simd.h"
#include "gemm/nibbles.h"
#include "gemm/operand.h"

namespace headrace::HR_ISA {

struct IntVec {
  __m256i lo, hi;
};

HR_INLINE IntVec splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
HR_INLINE IntVec load_int(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
HR_INLINE IntVec operator+(IntVec a, IntVec b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
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

// The weights that the low nibbles of a line stand for.
template <const CodeTable& kTable>
HR_INLINE __m256i unpack_low(__m256i line) {
  const __m256i codes = _mm256_and_si256(line, _mm256_set1_epi8(15));
  if constexpr (is_plain(kTable)) return codes;
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable.values));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

// One half of a panel, 8 outputs, with weights of four bits: 16-bit sums of adjacent pairs.
template <const CodeTable& kTable, int MR>
HR_INLINE void dot_narrow_half(const std::byte* codes, const Codes (&x)[MR], __m256i (&sum)[MR]) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) sum[m] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i line = load_codes(codes + 64 * i);
    const __m256i even = unpack_low<kTable>(line);
    const __m256i odd = unpack_low<kTable>(_mm256_srli_epi16(line, 4));
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      sum[m] = _mm256_add_epi16(sum[m], _mm256_maddubs_epi16(even, broadcast_quad(x[m], 2 * i)));
      pin(sum[m]);
      sum[m] = _mm256_add_epi16(sum[m], _mm256_maddubs_epi16(odd, broadcast_quad(x[m], 2 * i + 1)));
      pin(sum[m]);
    }
  }
}

// The same, put together.
template <const CodeTable& kTable, int MR>
HR_INLINE void dot_narrow(const std::byte* codes, const Codes (&x)[MR], __m256i (&dot)[MR]) {
  __m256i sum[MR];
  dot_narrow_half<kTable, MR>(codes, x, sum);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m] = _mm256_madd_epi16(sum[m], _mm256_set1_epi16(1));
}

// Weights of eight bits, 8 outputs: sums over the quads [kFirst, kFirst + kQuads), which `load`
// gives, low and high nibbles put together.
template <int kFirst, int kQuads, int MR, typename Load>
HR_INLINE void dot_wide(const Load& load, const Codes (&x)[MR], __m256i (&dot)[MR]) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i fine[MR], coarse[MR];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) fine[m] = coarse[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
    const __m256i weight = load(quad);
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

// Both halves of a panel: `half` computes one from its first code.
template <int MR, typename Half>
HR_INLINE void dot_halves(const std::byte* codes, IntVec (&dot)[MR], const Half& half) {
  __m256i part[MR];
  half(codes, part);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m].lo = _mm256_add_epi32(dot[m].lo, part[m]);
  forget_loads();
  half(codes + 32, part);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m].hi = _mm256_add_epi32(dot[m].hi, part[m]);
}

// dot[m] += the sum over 32 inputs of weight * x; `codes` is 256 bytes, low nibbles the
// even quads.
template <const CodeTable& kTable, int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
  dot_halves<MR>(
      codes, dot, [&](const std::byte* from, __m256i(&part)[MR]) __attribute__((always_inline)) {
        if constexpr (is_narrow(kTable)) {
          dot_narrow<kTable, MR>(from, x, part);
        } else {
          dot_wide<0, 8, MR>(
              [&](int quad) __attribute__((always_inline)) {
                const __m256i line = load_codes(from + 64 * (quad / 2));
                return unpack_low<kTable>(quad % 2 == 0 ? line : _mm256_srli_epi16(line, 4));
              },
              x, part);
        }
      });
}

// As dot_w4 for 8-bit codes, over the quads [kFirst, kFirst + kQuads).
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
  dot_halves<MR>(
      codes, dot, [&](const std::byte* from, __m256i(&part)[MR]) __attribute__((always_inline)) {
        dot_wide<kFirst, kQuads, MR>(
            [&](int quad) __attribute__((always_inline)) { return load_codes(from + 64 * quad); },
            x, part);
      });
}

}  // namespace headrace::HR_ISA
