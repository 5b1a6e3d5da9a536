// Vec in plain C++, for any machine; the compiler turns the loops into what the baseline has. See
// simd.h.
#pragma once

#include <cmath>

#include "base/half.h"

namespace headrace::HR_ISA {

inline constexpr int kLanes = 16;

struct Vec {
  alignas(16) float v[16];
};
struct Mask {
  alignas(16) int32_t m[16];  // -1 or 0
};

#define HR_LANES for (int i = 0; i < 16; ++i)

HR_INLINE Mask first_lanes(int n) {  // 0 <= n <= 16
  Mask k;
  HR_LANES k.m[i] = i < n ? -1 : 0;
  return k;
}

HR_INLINE Vec splat(float x) {
  Vec r;
  HR_LANES r.v[i] = x;
  return r;
}
HR_INLINE Vec zero() { return splat(0.0f); }
HR_INLINE Vec load(const float* p) {
  Vec r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
HR_INLINE Vec load(const float* p, Mask k) {
  Vec r;
  HR_LANES r.v[i] = k.m[i] ? p[i] : 0.0f;
  return r;
}
HR_INLINE void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof(a.v)); }
HR_INLINE void store(float* p, Vec a, Mask k) { HR_LANES if (k.m[i]) p[i] = a.v[i]; }

HR_INLINE Vec load_f16(const uint16_t* p) {
  Vec r;
  HR_LANES r.v[i] = float_from_f16(p[i]);
  return r;
}
HR_INLINE Vec load_f16(const uint16_t* p, Mask k) {
  Vec r;
  HR_LANES r.v[i] = k.m[i] ? float_from_f16(p[i]) : 0.0f;
  return r;
}
HR_INLINE void store_f16(uint16_t* p, Vec a) { HR_LANES p[i] = f16_from_float(a.v[i]); }
HR_INLINE void store_f16(uint16_t* p, Vec a, Mask k) {
  HR_LANES if (k.m[i]) p[i] = f16_from_float(a.v[i]);
}
HR_INLINE Vec load_bf16(const uint16_t* p) {
  Vec r;
  HR_LANES r.v[i] = float_from_bf16(p[i]);
  return r;
}
HR_INLINE Vec load_bf16(const uint16_t* p, Mask k) {
  Vec r;
  HR_LANES r.v[i] = k.m[i] ? float_from_bf16(p[i]) : 0.0f;
  return r;
}
HR_INLINE void store_bf16(uint16_t* p, Vec a) { HR_LANES p[i] = bf16_from_float(a.v[i]); }
HR_INLINE void store_bf16(uint16_t* p, Vec a, Mask k) {
  HR_LANES if (k.m[i]) p[i] = bf16_from_float(a.v[i]);
}

HR_INLINE Vec operator+(Vec a, Vec b) {
  HR_LANES a.v[i] += b.v[i];
  return a;
}
HR_INLINE Vec operator-(Vec a, Vec b) {
  HR_LANES a.v[i] -= b.v[i];
  return a;
}
HR_INLINE Vec operator*(Vec a, Vec b) {
  HR_LANES a.v[i] *= b.v[i];
  return a;
}
HR_INLINE Vec operator/(Vec a, Vec b) {
  HR_LANES a.v[i] /= b.v[i];
  return a;
}
// Two roundings: the baseline has no fused instruction, and emulating one costs a hundred times
// more.
HR_INLINE Vec fma(Vec a, Vec b, Vec c) {
  HR_LANES a.v[i] = a.v[i] * b.v[i] + c.v[i];
  return a;
}
HR_INLINE Vec min(Vec a, Vec b) {
  HR_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
HR_INLINE Vec max(Vec a, Vec b) {
  HR_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
HR_INLINE Vec abs(Vec a) {
  HR_LANES a.v[i] = std::fabs(a.v[i]);
  return a;
}
HR_INLINE Vec sqrt(Vec a) {
  HR_LANES a.v[i] = std::sqrt(a.v[i]);
  return a;
}
// To nearest even: adding and taking away 1.5 * 2^23 leaves the rounded value of small numbers.
HR_INLINE Vec round(Vec a) {
  HR_LANES {
    const float shifted = (a.v[i] + 0x1.8p23f) - 0x1.8p23f;
    a.v[i] = std::fabs(a.v[i]) < 0x1p22f ? shifted : std::nearbyintf(a.v[i]);
  }
  return a;
}
HR_INLINE Mask operator<(Vec a, Vec b) {
  Mask k;
  HR_LANES k.m[i] = a.v[i] < b.v[i] ? -1 : 0;
  return k;
}
HR_INLINE bool any(Mask k) {
  int32_t bits = 0;
  HR_LANES bits |= k.m[i];
  return bits != 0;
}
HR_INLINE Vec select(Mask k, Vec yes, Vec no) {
  HR_LANES no.v[i] = k.m[i] ? yes.v[i] : no.v[i];
  return no;
}
HR_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  HR_LANES magnitude.v[i] = std::copysign(magnitude.v[i], sign.v[i]);
  return magnitude;
}
// 2^n for whole n in [-126, 127].
HR_INLINE Vec power_of_two(Vec n) {
  HR_LANES {
    const float clamped =
        n.v[i] >= -127.0f && n.v[i] <= 128.0f ? n.v[i] : 0.0f;  // NaN to int is undefined
    n.v[i] = std::bit_cast<float>((static_cast<int32_t>(clamped) + 127) << 23);
  }
  return n;
}

// Tree: lane i with i + 8, then 4, 2, 1; the same in every instruction set.
HR_INLINE float reduce_add(Vec a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  }
  return a.v[0];
}
HR_INLINE float reduce_max(Vec a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  }
  return a.v[0];
}

// Sixteen codes in [-128, 127] from whole numbers; larger ones saturate, NaN gives -128. Returns
// their sum.
HR_INLINE int32_t store_codes(int8_t* p, Vec whole) {
  int32_t sum = 0;
  HR_LANES {
    float x = whole.v[i] > -128.0f ? whole.v[i] : -128.0f;
    x = x < 127.0f ? x : 127.0f;
    p[i] = static_cast<int8_t>(static_cast<int32_t>(x));
    sum += p[i];
  }
  return sum;
}

// The larger of two as sign-less bit patterns: NaN counts as larger than infinity, so it is never
// lost.
HR_INLINE float max_bits(float a, float b) {
  const int32_t x = std::bit_cast<int32_t>(a) & 0x7fffffff;
  const int32_t y = std::bit_cast<int32_t>(b) & 0x7fffffff;
  return std::bit_cast<float>(x > y ? x : y);
}
HR_INLINE Vec max_magnitude(Vec a, Vec b) {
  HR_LANES a.v[i] = max_bits(a.v[i], b.v[i]);
  return a;
}
HR_INLINE float reduce_max_magnitude(Vec a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] = max_bits(a.v[i], a.v[i + step]);
  }
  return max_bits(a.v[0], 0.0f);
}

#undef HR_LANES

}  // namespace headrace::HR_ISA
