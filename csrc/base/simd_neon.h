// Vec for 64-bit Arm: four NEON registers. See simd.h.
#pragma once

#include <arm_neon.h>

namespace headrace::HR_ISA {

inline constexpr int kLanes = 16;

struct Vec {
  float32x4_t v[4];
};
struct Mask {
  uint32x4_t m[4];  // all bits or none
};

// Once per part of a Vec.
#define HR_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)

HR_INLINE Mask first_lanes(int n) {  // 0 <= n <= 16
  constexpr int32_t kNumbers[] = {0, 1, 2, 3};
  const int32x4_t lanes = vld1q_s32(kNumbers);
  Mask k;
  HR_PARTS k.m[i] = vcltq_s32(lanes, vdupq_n_s32(n - 4 * i));
  return k;
}
// How many lanes a first_lanes mask has.
HR_INLINE int count_lanes(Mask k) {
  const uint32x4_t ones = vaddq_u32(vaddq_u32(k.m[0], k.m[1]), vaddq_u32(k.m[2], k.m[3]));
  return -static_cast<int>(vaddvq_u32(ones));
}

HR_INLINE Vec splat(float x) {
  const float32x4_t part = vdupq_n_f32(x);
  return {{part, part, part, part}};
}
HR_INLINE Vec zero() { return splat(0.0f); }
HR_INLINE Vec load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
HR_INLINE void store(float* p, Vec a) { HR_PARTS vst1q_f32(p + 4 * i, a.v[i]); }

// Masked accesses go through the stack, so that nothing past the mask is touched.
HR_INLINE Vec load(const float* p, Mask k) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(count_lanes(k)) * sizeof(float));
  return load(lanes);
}
HR_INLINE void store(float* p, Vec a, Mask k) {
  float lanes[kLanes];
  store(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(count_lanes(k)) * sizeof(float));
}
struct HalfLanes {
  uint16_t lanes[kLanes] = {};
};
HR_INLINE HalfLanes load_halves(const uint16_t* p, Mask k) {
  HalfLanes r;
  std::memcpy(r.lanes, p, static_cast<size_t>(count_lanes(k)) * sizeof(uint16_t));
  return r;
}
HR_INLINE void store_halves(uint16_t* p, const HalfLanes& a, Mask k) {
  std::memcpy(p, a.lanes, static_cast<size_t>(count_lanes(k)) * sizeof(uint16_t));
}

HR_INLINE Vec load_f16(const uint16_t* p) {
  Vec r;
  HR_PARTS r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
HR_INLINE Vec load_f16(const uint16_t* p, Mask k) { return load_f16(load_halves(p, k).lanes); }
HR_INLINE void store_f16(uint16_t* p, Vec a) {
  HR_PARTS vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
HR_INLINE void store_f16(uint16_t* p, Vec a, Mask k) {
  HalfLanes r;
  store_f16(r.lanes, a);
  store_halves(p, r, k);
}

HR_INLINE Vec load_bf16(const uint16_t* p) {
  Vec r;
  HR_PARTS r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
HR_INLINE Vec load_bf16(const uint16_t* p, Mask k) { return load_bf16(load_halves(p, k).lanes); }
HR_INLINE void store_bf16(uint16_t* p, Vec a) {
  HR_PARTS {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t is_number = vceqq_f32(a.v[i], a.v[i]);
    vst1_u16(p + 4 * i, vshrn_n_u32(vbslq_u32(is_number, rounded, quiet), 16));
  }
}
HR_INLINE void store_bf16(uint16_t* p, Vec a, Mask k) {
  HalfLanes r;
  store_bf16(r.lanes, a);
  store_halves(p, r, k);
}

HR_INLINE Vec operator+(Vec a, Vec b) {
  HR_PARTS a.v[i] = vaddq_f32(a.v[i], b.v[i]);
  return a;
}
HR_INLINE Vec operator-(Vec a, Vec b) {
  HR_PARTS a.v[i] = vsubq_f32(a.v[i], b.v[i]);
  return a;
}
HR_INLINE Vec operator*(Vec a, Vec b) {
  HR_PARTS a.v[i] = vmulq_f32(a.v[i], b.v[i]);
  return a;
}
HR_INLINE Vec operator/(Vec a, Vec b) {
  HR_PARTS a.v[i] = vdivq_f32(a.v[i], b.v[i]);
  return a;
}
HR_INLINE Vec fma(Vec a, Vec b, Vec c) {  // a * b + c
  HR_PARTS c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
// Compared and selected: the instructions for it treat NaN in another way.
HR_INLINE Vec min(Vec a, Vec b) {
  HR_PARTS a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
HR_INLINE Vec max(Vec a, Vec b) {
  HR_PARTS a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
HR_INLINE Vec abs(Vec a) {
  HR_PARTS a.v[i] = vabsq_f32(a.v[i]);
  return a;
}
HR_INLINE Vec sqrt(Vec a) {
  HR_PARTS a.v[i] = vsqrtq_f32(a.v[i]);
  return a;
}
HR_INLINE Vec round(Vec a) {  // to nearest even
  HR_PARTS a.v[i] = vrndnq_f32(a.v[i]);
  return a;
}
HR_INLINE Mask operator<(Vec a, Vec b) {
  Mask k;
  HR_PARTS k.m[i] = vcltq_f32(a.v[i], b.v[i]);
  return k;
}
HR_INLINE bool any(Mask k) {
  const uint32x4_t bits = vorrq_u32(vorrq_u32(k.m[0], k.m[1]), vorrq_u32(k.m[2], k.m[3]));
  return vmaxvq_u32(bits) != 0;
}
HR_INLINE Vec select(Mask k, Vec yes, Vec no) {
  HR_PARTS no.v[i] = vbslq_f32(k.m[i], yes.v[i], no.v[i]);
  return no;
}
HR_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  HR_PARTS magnitude.v[i] =
      vbslq_f32(vdupq_n_u32(0x80000000u), sign.v[i], vabsq_f32(magnitude.v[i]));
  return magnitude;
}
// 2^n for whole n in [-126, 127].
HR_INLINE Vec power_of_two(Vec n) {
  HR_PARTS {
    const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127));
    n.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
  }
  return n;
}

// Tree: lane i with i + 8, then 4, 2, 1; the same in every instruction set.
HR_INLINE float reduce_add(Vec a) {
  const float32x4_t x = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
HR_INLINE float reduce_max(Vec a) {
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  const auto pick = [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); };
  const float32x4_t x = pick(pick(a.v[0], a.v[2]), pick(a.v[1], a.v[3]));
  return larger(larger(vgetq_lane_f32(x, 0), vgetq_lane_f32(x, 2)),
                larger(vgetq_lane_f32(x, 1), vgetq_lane_f32(x, 3)));
}

// Sixteen codes, rounded to nearest even and saturated to [-128, 127]; returns their sum.
HR_INLINE int32_t store_sixteen(int8_t* p, Vec whole) {
  int16x4_t words[4];
  HR_PARTS words[i] = vqmovn_s32(vcvtnq_s32_f32(whole.v[i]));
  const int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(words[0], words[1])),
                                      vqmovn_s16(vcombine_s16(words[2], words[3])));
  vst1q_s8(p, bytes);
  return vaddlvq_s8(bytes);
}
// Two times sixteen codes; `sums` gets the sum of each sixteen.
HR_INLINE void store_codes(int8_t* p, Vec first, Vec second, int32_t* sums) {
  sums[0] = store_sixteen(p, first);
  sums[1] = store_sixteen(p + kLanes, second);
}

// The larger of two as sign-less bit patterns: NaN counts as larger than infinity, so it is never
// lost.
HR_INLINE uint32x4_t magnitude_bits(float32x4_t a) { return vreinterpretq_u32_f32(vabsq_f32(a)); }
HR_INLINE Vec max_magnitude(Vec a, Vec b) {
  HR_PARTS a.v[i] =
      vreinterpretq_f32_u32(vmaxq_u32(magnitude_bits(a.v[i]), magnitude_bits(b.v[i])));
  return a;
}
HR_INLINE float reduce_max_magnitude(Vec a) {
  const uint32x4_t low = vmaxq_u32(magnitude_bits(a.v[0]), magnitude_bits(a.v[1]));
  const uint32x4_t high = vmaxq_u32(magnitude_bits(a.v[2]), magnitude_bits(a.v[3]));
  const uint32_t most = vmaxvq_u32(vmaxq_u32(low, high));
  float value;
  std::memcpy(&value, &most, sizeof(value));
  return value;
}

#undef HR_PARTS

}  // namespace headrace::HR_ISA
