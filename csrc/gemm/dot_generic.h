// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, in plain
// C++.
#pragma once

#include "base/simd.h"

namespace headrace::HR_ISA {

struct IntVec {
  alignas(16) int32_t v[16];
};

HR_INLINE IntVec splat_int(int32_t x) {
  IntVec r;
  for (int n = 0; n < 16; ++n) r.v[n] = x;
  return r;
}
HR_INLINE Vec to_float(const IntVec& a) {
  Vec r;
  for (int n = 0; n < 16; ++n) r.v[n] = static_cast<float>(a.v[n]);
  return r;
}

HR_INLINE const Q8Group* row_at(const Q8Group* first, int64_t stride, int row) {
  return reinterpret_cast<const Q8Group*>(reinterpret_cast<const std::byte*>(first) + row * stride);
}

// One quad of inputs: 64 weights as 16-bit numbers, [16 outputs][4 inputs].
HR_INLINE void add_quad(const int16_t* weight, const int8_t* x, IntVec& dot) {
  const int16_t a = x[0], b = x[1], c = x[2], d = x[3];
  const int16_t four[8] = {a, b, c, d, a, b, c, d};
  for (int n = 0; n < 16; n += 2) {
    int32_t product[8];
    for (int i = 0; i < 8; ++i) product[i] = weight[4 * n + i] * four[i];
    dot.v[n] += product[0] + product[1] + product[2] + product[3];
    dot.v[n + 1] += product[4] + product[5] + product[6] + product[7];
  }
}

template <int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Q8Group* x, int64_t stride, IntVec (&dot)[MR]) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  for (int i = 0; i < 4; ++i) {
    int16_t even[64], odd[64];
    for (int j = 0; j < 64; ++j) {
      even[j] = bytes[64 * i + j] & 15;
      odd[j] = bytes[64 * i + j] >> 4;
    }
    for (int m = 0; m < MR; ++m) {
      add_quad(even, row_at(x, stride, m)->codes + 8 * i, dot[m]);
      add_quad(odd, row_at(x, stride, m)->codes + 8 * i + 4, dot[m]);
    }
  }
}

template <int kHalf, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Q8Group* x, int64_t stride, IntVec (&dot)[MR]) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  for (int quad = 4 * kHalf; quad < 4 * kHalf + 4; ++quad) {
    int16_t weight[64];
    for (int j = 0; j < 64; ++j) weight[j] = bytes[64 * quad + j];
    for (int m = 0; m < MR; ++m) add_quad(weight, row_at(x, stride, m)->codes + 4 * quad, dot[m]);
  }
}

}  // namespace headrace::HR_ISA
