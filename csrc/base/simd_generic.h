// Vec for any machine: vectors of four lanes, which the compiler maps to what the baseline has. See
// simd.h.
#pragma once

#include <cmath>

#include "base/half.h"

namespace headrace::HR_ISA {

inline constexpr int kLanes = 16;

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

struct Vec {
  Float4 v[4];
};
struct Mask {
  Int4 m[4];  // -1 or 0
};

// Once per part of a Vec.
#define HR_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)

HR_INLINE Mask first_lanes(int n) {  // 0 <= n <= 16
  Mask k;
  HR_PARTS k.m[i] = Int4{0, 1, 2, 3} + 4 * i < n;
  return k;
}
// How many lanes a first_lanes mask has.
HR_INLINE int count_lanes(Mask k) {
  const Int4 sum = k.m[0] + k.m[1] + k.m[2] + k.m[3];
  return -(sum[0] + sum[1] + sum[2] + sum[3]);
}

HR_INLINE Vec splat(float x) {
  Vec r;
  HR_PARTS r.v[i] = Float4{x, x, x, x};
  return r;
}
HR_INLINE Vec zero() { return splat(0.0f); }
HR_INLINE Vec load(const float* p) {
  Vec r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
HR_INLINE void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof(a.v)); }
HR_INLINE Vec load(const float* p, Mask k) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(count_lanes(k)) * sizeof(float));
  return load(lanes);
}
HR_INLINE void store(float* p, Vec a, Mask k) {
  std::memcpy(p, a.v, static_cast<size_t>(count_lanes(k)) * sizeof(float));
}

// Sixteen halves as integers; those past `count` are zero.
struct Halves {
  Int4 v[4];
};
HR_INLINE Halves load_halves(const uint16_t* p, int count) {
  using UShort4 = uint16_t __attribute__((vector_size(8)));
  UShort4 parts[4] = {};
  std::memcpy(parts, p, static_cast<size_t>(count) * sizeof(uint16_t));
  Halves r;
  HR_PARTS r.v[i] = __builtin_convertvector(parts[i], Int4);
  return r;
}
// As float_from_f16 in half.h.
HR_INLINE Vec widen_f16(Halves a) {
  Vec r;
  HR_PARTS {
    const Int4 magnitude = (a.v[i] & 0x7fff) << 13;
    const Int4 finite = (Int4)((Float4)magnitude * 0x1p112f);
    const Int4 bits = magnitude < (0x7c00 << 13) ? finite : (magnitude | 0x7f800000);
    r.v[i] = (Float4)(bits | ((a.v[i] & 0x8000) << 16));
  }
  return r;
}
HR_INLINE Vec widen_bf16(Halves a) {
  Vec r;
  HR_PARTS r.v[i] = (Float4)(a.v[i] << 16);
  return r;
}
HR_INLINE Vec load_f16(const uint16_t* p) { return widen_f16(load_halves(p, kLanes)); }
HR_INLINE Vec load_f16(const uint16_t* p, Mask k) {
  return widen_f16(load_halves(p, count_lanes(k)));
}
HR_INLINE Vec load_bf16(const uint16_t* p) { return widen_bf16(load_halves(p, kLanes)); }
HR_INLINE Vec load_bf16(const uint16_t* p, Mask k) {
  return widen_bf16(load_halves(p, count_lanes(k)));
}

// Stores go through the stack, one lane at a time.
template <typename Convert>
HR_INLINE void store_halves(uint16_t* p, Vec a, int count, Convert convert) {
  float lanes[kLanes];
  store(lanes, a);
#pragma GCC unroll 1
  for (int i = 0; i < count; ++i) p[i] = convert(lanes[i]);
}
HR_INLINE void store_f16(uint16_t* p, Vec a) {
  store_halves(p, a, kLanes, [](float value) { return f16_from_float(value); });
}
HR_INLINE void store_f16(uint16_t* p, Vec a, Mask k) {
  store_halves(p, a, count_lanes(k), [](float value) { return f16_from_float(value); });
}
HR_INLINE void store_bf16(uint16_t* p, Vec a) {
  store_halves(p, a, kLanes, [](float value) { return bf16_from_float(value); });
}
HR_INLINE void store_bf16(uint16_t* p, Vec a, Mask k) {
  store_halves(p, a, count_lanes(k), [](float value) { return bf16_from_float(value); });
}

HR_INLINE Vec operator+(Vec a, Vec b) {
  HR_PARTS a.v[i] += b.v[i];
  return a;
}
HR_INLINE Vec operator-(Vec a, Vec b) {
  HR_PARTS a.v[i] -= b.v[i];
  return a;
}
HR_INLINE Vec operator*(Vec a, Vec b) {
  HR_PARTS a.v[i] *= b.v[i];
  return a;
}
HR_INLINE Vec operator/(Vec a, Vec b) {
  HR_PARTS a.v[i] /= b.v[i];
  return a;
}
// Two roundings: the baseline has no fused instruction, and emulating one costs a hundred times
// more.
HR_INLINE Vec fma(Vec a, Vec b, Vec c) {
  HR_PARTS a.v[i] = a.v[i] * b.v[i] + c.v[i];
  return a;
}
HR_INLINE Vec min(Vec a, Vec b) {
  HR_PARTS a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
HR_INLINE Vec max(Vec a, Vec b) {
  HR_PARTS a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
HR_INLINE Vec abs(Vec a) {
  HR_PARTS a.v[i] = (Float4)((Int4)a.v[i] & 0x7fffffff);
  return a;
}
HR_INLINE Vec sqrt(Vec a) {
  HR_PARTS {
    for (int j = 0; j < 4; ++j) a.v[i][j] = std::sqrt(a.v[i][j]);
  }
  return a;
}
// To nearest even: adding and taking away 2^23 of the same sign rounds what is smaller than that.
HR_INLINE Vec round(Vec a) {
  HR_PARTS {
    const Int4 sign = (Int4)a.v[i] & INT32_MIN;
    const Float4 magnitude = (Float4)((Int4)a.v[i] & 0x7fffffff);
    const Float4 whole = (Float4)((Int4)(magnitude + 0x1p23f - 0x1p23f) | sign);
    a.v[i] = magnitude < 0x1p23f ? whole : a.v[i];
  }
  return a;
}
HR_INLINE Mask operator<(Vec a, Vec b) {
  Mask k;
  HR_PARTS k.m[i] = a.v[i] < b.v[i];
  return k;
}
HR_INLINE bool any(Mask k) {
  const Int4 bits = k.m[0] | k.m[1] | k.m[2] | k.m[3];
  return (bits[0] | bits[1] | bits[2] | bits[3]) != 0;
}
HR_INLINE Vec select(Mask k, Vec yes, Vec no) {
  HR_PARTS no.v[i] = k.m[i] ? yes.v[i] : no.v[i];
  return no;
}
HR_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  HR_PARTS {
    const Int4 kept = (Int4)magnitude.v[i] & 0x7fffffff;
    magnitude.v[i] = (Float4)(kept | ((Int4)sign.v[i] & INT32_MIN));
  }
  return magnitude;
}
// 2^n for whole n in [-126, 127]. Adding 1.5 * 2^23 + 127 leaves the biased exponent in the low
// bits, without a conversion to an integer that NaN would make undefined.
HR_INLINE Vec power_of_two(Vec n) {
  HR_PARTS n.v[i] = (Float4)((Int4)(n.v[i] + (0x1.8p23f + 127.0f)) << 23);
  return n;
}

// Tree: lane i with i + 8, then 4, 2, 1; the same in every instruction set.
HR_INLINE float reduce_add(Vec a) {
  const Float4 x = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (x[0] + x[2]) + (x[1] + x[3]);
}
HR_INLINE float reduce_max(Vec a) {
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  const Float4 low = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const Float4 high = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  const Float4 x = low > high ? low : high;
  return larger(larger(x[0], x[2]), larger(x[1], x[3]));
}

// Two times sixteen codes, rounded to nearest even and saturated to [-128, 127]. `sums` gets the
// sum of each sixteen.
HR_INLINE int32_t store_sixteen(int8_t* p, Vec whole) {
  const Vec clamped = min(splat(127.0f), max(whole, splat(-128.0f)));
  Int4 sum{};
  HR_PARTS {
    const Int4 codes = (Int4)(clamped.v[i] + 0x1.8p23f) - 0x4b400000;
    sum += codes;
    for (int j = 0; j < 4; ++j) p[4 * i + j] = static_cast<int8_t>(codes[j]);
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}
HR_INLINE void store_codes(int8_t* p, Vec first, Vec second, int32_t* sums) {
  sums[0] = store_sixteen(p, first);
  sums[1] = store_sixteen(p + kLanes, second);
}

// The larger of two as sign-less bit patterns: NaN counts as larger than infinity, so it is never
// lost.
HR_INLINE Vec max_magnitude(Vec a, Vec b) {
  HR_PARTS {
    const Int4 x = (Int4)a.v[i] & 0x7fffffff, y = (Int4)b.v[i] & 0x7fffffff;
    a.v[i] = (Float4)(x > y ? x : y);
  }
  return a;
}
HR_INLINE float reduce_max_magnitude(Vec a) {
  int32_t most = 0;
  HR_PARTS {
    for (int j = 0; j < 4; ++j) {
      const int32_t bits = ((Int4)a.v[i])[j] & 0x7fffffff;
      most = bits > most ? bits : most;
    }
  }
  return std::bit_cast<float>(most);
}

#undef HR_PARTS

}  // namespace headrace::HR_ISA
