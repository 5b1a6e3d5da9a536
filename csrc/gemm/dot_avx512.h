// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, with VNNI.
#pragma once

#include <immintrin.h>

#include "base/simd.h"
#include "gemm/operand.h"

namespace headrace::HR_ISA {

struct IntVec {
  __m512i v;
};

HR_INLINE IntVec splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
HR_INLINE Vec to_float(IntVec a) { return {_mm512_cvtepi32_ps(a.v)}; }

HR_INLINE __m512i broadcast_quad(const Codes& row, int quad) {
  int32_t four;
  std::memcpy(&four, row + 4 * quad, 4);
  return _mm512_set1_epi32(four);
}

// dot[m] = start[m] + the sum over 32 inputs of code * x; `codes` is 256 bytes, low nibbles the
// even quads.
template <int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Codes (&x)[MR], const int32_t (&start)[MR],
                      IntVec (&dot)[MR]) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m] = splat_int(start[m]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i pair = _mm512_load_si512(codes + 64 * i);
    const __m512i even = _mm512_and_si512(pair, low);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      dot[m].v = _mm512_dpbusd_epi32(dot[m].v, even, broadcast_quad(x[m], 2 * i));
      dot[m].v = _mm512_dpbusd_epi32(dot[m].v, odd, broadcast_quad(x[m], 2 * i + 1));
    }
  }
}

// The same for 8-bit codes, over the quads [kFirst, kFirst + kQuads).
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Codes (&x)[MR], const int32_t (&start)[MR],
                      IntVec (&dot)[MR]) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) dot[m] = splat_int(start[m]);
#pragma GCC unroll 8
  for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
    const __m512i weight = _mm512_load_si512(codes + 64 * quad);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m)
      dot[m].v = _mm512_dpbusd_epi32(dot[m].v, weight, broadcast_quad(x[m], quad));
  }
}

}  // namespace headrace::HR_ISA
