// Integer dot products of one group of 32 inputs: a panel of 16 outputs times MR rows, with the dot
// product instructions of Armv8.2. Where the build target has products of unsigned and signed
// bytes, 8-bit weights take one instruction, else two nibbles.
#pragma once

#include <arm_neon.h>

#include "base/simd.h"
#include "gemm/nibbles.h"
#include "gemm/operand.h"

namespace headrace::HR_ISA {

struct IntVec {
  int32x4_t v[4];
};

HR_INLINE IntVec splat_int(int32_t x) {
  const int32x4_t part = vdupq_n_s32(x);
  return {{part, part, part, part}};
}
HR_INLINE IntVec load_int(const int32_t* p) {
  return {{vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}};
}
HR_INLINE IntVec operator+(IntVec a, IntVec b) {
  IntVec r;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r.v[i] = vaddq_s32(a.v[i], b.v[i]);
  return r;
}
HR_INLINE Vec to_float(IntVec a) {
  Vec r;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r.v[i] = vcvtq_f32_s32(a.v[i]);
  return r;
}

// Four codes of a row, repeated.
HR_INLINE int8x16_t broadcast_quad(const Codes& row, int quad) {
  int32_t four;
  std::memcpy(&four, row + 4 * quad, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

HR_INLINE uint8x16_t load_codes(const std::byte* p) {
  return vld1q_u8(reinterpret_cast<const uint8_t*>(p));
}

// The weights that the low or high nibbles of a line stand for.
template <const CodeTable& kTable>
HR_INLINE uint8x16_t unpack(uint8x16_t line, bool is_high) {
  const uint8x16_t codes = is_high ? vshrq_n_u8(line, 4) : vandq_u8(line, vdupq_n_u8(15));
  if constexpr (is_plain(kTable)) return codes;
  return vqtbl1q_u8(vld1q_u8(kTable.values), codes);
}

// sum + weight . x for four outputs. kIsNarrow: weights of less than 128.
template <bool kIsNarrow>
HR_INLINE int32x4_t add_dot(int32x4_t sum, uint8x16_t weight, int8x16_t x) {
  if constexpr (kIsNarrow) return vdotq_s32(sum, vreinterpretq_s8_u8(weight), x);
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(sum, weight, x);
#else
  const int8x16_t fine = vreinterpretq_s8_u8(vandq_u8(weight, vdupq_n_u8(15)));
  const int8x16_t coarse = vreinterpretq_s8_u8(vshrq_n_u8(weight, 4));
  const int32x4_t sixteenths = vdotq_s32(vdupq_n_s32(0), coarse, x);
  return vaddq_s32(vdotq_s32(sum, fine, x), vshlq_n_s32(sixteenths, 4));
#endif
}

// dot[m] += the sum over the quads [kFirst, kFirst + kQuads) of weight * x; part i of a quad's
// weights, four outputs, is what `load` gives.
template <bool kIsNarrow, int kFirst, int kQuads, int MR, typename Load>
HR_INLINE void dot_quads(const Load& load, const Codes (&x)[MR], IntVec (&dot)[MR]) {
#pragma GCC unroll 8
  for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
    int8x16_t four[MR];
#pragma GCC unroll 4
    for (int m = 0; m < MR; ++m) four[m] = broadcast_quad(x[m], quad);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint8x16_t weight = load(quad, i);
#pragma GCC unroll 4
      for (int m = 0; m < MR; ++m) dot[m].v[i] = add_dot<kIsNarrow>(dot[m].v[i], weight, four[m]);
    }
  }
}

// dot[m] += the sum over 32 inputs of weight * x; `codes` is 256 bytes, low nibbles the even quads.
template <const CodeTable& kTable, int MR>
HR_INLINE void dot_w4(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
  dot_quads<is_narrow(kTable), 0, 8, MR>(
      [&](int quad, int part) __attribute__((always_inline)) {
        return unpack<kTable>(load_codes(codes + 64 * (quad / 2) + 16 * part), quad % 2 == 1);
      },
      x, dot);
}

// The same for 8-bit codes, over the quads [kFirst, kFirst + kQuads).
template <int kFirst, int kQuads, int MR>
HR_INLINE void dot_w8(const std::byte* codes, const Codes (&x)[MR], IntVec (&dot)[MR]) {
  dot_quads<false, kFirst, kQuads, MR>(
      [&](int quad, int part)
          __attribute__((always_inline)) { return load_codes(codes + 64 * quad + 16 * part); },
      x, dot);
}

}  // namespace headrace::HR_ISA
