// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, with VNNI.
#pragma once

#include <immintrin.h>

#include "base/simd.h"
#include "gemm/nibbles.h"
#include "gemm/operand.h"

namespace headrace::HR_ISA {

struct IntVec {
  __m512i v;
};

HR_INLINE IntVec splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
HR_INLINE IntVec load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
HR_INLINE IntVec operator+(IntVec a, IntVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
HR_INLINE Vec to_float(IntVec a) { return {_mm512_cvtepi32_ps(a.v)}; }

// sum += weight * four codes of a row, in every lane. In assembly, because the compiler makes two
// instructions of it.
HR_INLINE void add_quad(__m512i& sum, __m512i weight, const Codes& row, int quad) {
  using Quad [[gnu::may_alias, gnu::aligned(1)]] = int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weight), "m"(*reinterpret_cast<const Quad*>(row + 4 * quad)));
}

// The weights that the low nibbles of a line stand for.
template <const CodeTable& kTable>
HR_INLINE __m512i unpack_low(__m512i line) {
  const __m512i codes = _mm512_and_si512(line, _mm512_set1_epi8(15));
  if constexpr (is_plain(kTable)) return codes;
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable.values));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

// dot[m] += the sum over 32 inputs of weight * x; `codes` is 256 bytes, low nibbles the
// even quads.
template <const CodeTable& kTable, int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i line = _mm512_load_si512(codes + 64 * i);
    const __m512i even = unpack_low<kTable>(line);
    const __m512i odd = unpack_low<kTable>(_mm512_srli_epi16(line, 4));
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      add_quad(dot[m].v, even, x[m], 2 * i);
      add_quad(dot[m].v, odd, x[m], 2 * i + 1);
    }
  }
}

// The same for 8-bit codes, over the quads [kFirst, kFirst + kQuads).
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
#pragma GCC unroll 8
  for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
    const __m512i weight = _mm512_load_si512(codes + 64 * quad);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) add_quad(dot[m].v, weight, x[m], quad);
  }
}

}  // namespace headrace::HR_ISA
