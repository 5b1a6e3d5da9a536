// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, in vectors
// of 16 bytes.
//
// Nibbles times codes are summed in 16 bits as in dot_avx2.h: 8 quads of 2 products of at most 15 *
// 128 in a lane.
#pragma once

#include "base/simd.h"
#include "gemm/nibbles.h"
#include "gemm/operand.h"

namespace headrace::HR_ISA {

using Short8 = int16_t __attribute__((vector_size(16)));
using UShort8 = uint16_t __attribute__((vector_size(16)));

struct IntVec {
  Int4 v[4];
};

HR_INLINE IntVec splat_int(int32_t x) {
  const Int4 part{x, x, x, x};
  return {{part, part, part, part}};
}
HR_INLINE IntVec load_int(const int32_t* p) {
  IntVec r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
HR_INLINE IntVec operator+(IntVec a, IntVec b) {
  IntVec r;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r.v[i] = a.v[i] + b.v[i];
  return r;
}
HR_INLINE Vec to_float(IntVec a) {
  Vec r;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r.v[i] = __builtin_convertvector(a.v[i], Float4);
  return r;
}

// A quad of codes as 16-bit numbers: inputs 0 and 2, and inputs 1 and 3, four times over.
struct QuadCodes {
  Short8 even, odd;
};
HR_INLINE QuadCodes load_quad(const Codes& row, int quad) {
  int32_t four;
  std::memcpy(&four, row + 4 * quad, 4);
  const auto both = (Short8)Int4{four, four, four, four};
  return {(both << 8) >> 8, both >> 8};
}

// Products of nibbles of four outputs' quads, (inputs 0 and 1, inputs 2 and 3) in adjacent lanes.
template <int kShift>
HR_INLINE Short8 multiply(UShort8 weight, const QuadCodes& x) {
  const auto even = (Short8)((weight >> kShift) & 15),
             odd = (Short8)((weight >> (8 + kShift)) & 15);
  return even * x.even + odd * x.odd;
}

HR_INLINE Int4 add_pairs(Short8 sums) {
  const auto both = (Int4)sums;
  return ((both << 16) >> 16) + (both >> 16);
}

HR_INLINE UShort8 load_line(const std::byte* p) {
  UShort8 line;
  std::memcpy(&line, p, sizeof(line));
  return line;
}

// The weights that the nibbles of a line stand for, one byte each.
template <const CodeTable& kTable>
HR_INLINE UShort8 look_up(const std::byte* p, int shift) {
  uint8_t weights[16];
#pragma GCC unroll 1
  for (int i = 0; i < 16; ++i) {
    weights[i] = kTable.values[std::to_integer<int>(p[i]) >> shift & 15];
  }
  UShort8 line;
  std::memcpy(&line, weights, sizeof(line));
  return line;
}

// Weights of four bits, which need no table.
template <int MR>
HR_INLINE void dot_narrow(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
#pragma GCC unroll 1
  for (int m = 0; m < MR; ++m) {
    Short8 sum[4] = {};
#pragma GCC unroll 1
    for (int line = 0; line < 4; ++line) {
      const QuadCodes low = load_quad(x[m], 2 * line), high = load_quad(x[m], 2 * line + 1);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const UShort8 weight = load_line(codes + 64 * line + 16 * i);
        sum[i] += multiply<0>(weight, low) + multiply<4>(weight, high);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) dot[m].v[i] += add_pairs(sum[i]);
  }
}

// Weights of eight bits: part i of the quads [kFirst, kFirst + kQuads) is what `load` gives.
template <int kFirst, int kQuads, int MR, typename Load>
HR_INLINE void dot_wide(const Load& load, const Codes (&x)[MR], IntVec (&dot)[MR]) {
#pragma GCC unroll 1
  for (int m = 0; m < MR; ++m) {
    Short8 fine[4] = {}, coarse[4] = {};
#pragma GCC unroll 1
    for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
      const QuadCodes four = load_quad(x[m], quad);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const UShort8 weight = load(quad, i);
        fine[i] += multiply<0>(weight, four);
        coarse[i] += multiply<4>(weight, four);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) dot[m].v[i] += add_pairs(fine[i]) + (add_pairs(coarse[i]) << 4);
  }
}

// dot[m] += the sum over 32 inputs of weight * x; `codes` is 256 bytes, low nibbles the
// even quads.
template <const CodeTable& kTable, int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
  if constexpr (is_plain(kTable)) {
    dot_narrow<MR>(codes, x, dot);
  } else {
    dot_wide<0, 8, MR>(
        [&](int quad, int part) __attribute__((always_inline)) {
          return look_up<kTable>(codes + 64 * (quad / 2) + 16 * part, quad % 2 * 4);
        },
        x, dot);
  }
}

// The same for 8-bit codes, over the quads [kFirst, kFirst + kQuads).
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
  dot_wide<kFirst, kQuads, MR>(
      [&](int quad, int part)
          __attribute__((always_inline)) { return load_line(codes + 64 * quad + 16 * part); },
      x, dot);
}

}  // namespace headrace::HR_ISA
