// Functions over Vec that are the same in every instruction set. Included by simd.h.
#pragma once

namespace headrace::HR_ISA {

#if !defined(HR_ISA_AVX512)
// x * 2^n for whole n in [-126, 127].
HR_INLINE Vec scale_by_power(Vec x, Vec n) { return x * power_of_two(n); }
#endif

// e^x within 2 units in the last place; 0 below -87.33 (the smallest normal result), infinity
// above 88.72, NaN for NaN. Cody-Waite reduction and the minimax polynomial of Cephes expf (S.
// Moshier).
HR_INLINE Vec exp(Vec x) {
  const Vec low = splat(-87.33654f), high = splat(88.72283f);
  const Vec clamped = min(high, max(low, x));
  Vec n = round(clamped * splat(1.44269504f));
#if !defined(HR_ISA_AVX512)
  n = min(splat(127.0f), n);  // 2^128 is no float; the rest of the factor stays in r
#endif
  Vec r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p * r, r, r) + splat(1.0f);
#if defined(HR_ISA_AVX512)
  // One instruction scales, and a mask of "not below" makes zeros; NaN is not below.
  const __mmask16 is_kept = _mm512_cmp_ps_mask(x.v, low.v, _CMP_NLT_UQ);
  p = {_mm512_maskz_scalef_ps(is_kept, p.v, n.v)};
#else
  p = select(x < low, zero(), p * power_of_two(n));
#endif
  return select(high < x, splat(__builtin_inff()), p);
}

// tanh within 4 units in the last place. Small arguments by the polynomial of Cephes tanhf, others
// by exp.
HR_INLINE Vec tanh(Vec x) {
  const Vec magnitude = abs(x);
  const Vec z = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const Vec small = fma(p * z, x, x);
  const Vec large = splat(1.0f) - splat(2.0f) / (exp(magnitude + magnitude) + splat(1.0f));
  return select(magnitude < splat(0.625f), small, copy_sign(large, x));
}

// erfc(z) = 1 - erf(z) for z >= 0, within 8 units in the last place where z < 4 (further out the
// rounding of z^2 shows); 0 beyond 9.3, NaN for NaN. With t = 1 / (1 + z / 2), log(erfc(z) / t) +
// z^2 is a polynomial of t: interpolated at the Chebyshev points of z in [0, 10], off by 5e-8.
HR_INLINE Vec erfc(Vec z) {
  const Vec t = splat(1.0f) / fma(z, splat(0.5f), splat(1.0f));
  Vec p = splat(0.1480460544f);
  p = fma(p, t, splat(-0.6975365931f));
  p = fma(p, t, splat(1.19532768f));
  p = fma(p, t, splat(-0.7464699019f));
  p = fma(p, t, splat(-0.03986631168f));
  p = fma(p, t, splat(-0.01950800657f));
  p = fma(p, t, splat(0.04139596522f));
  p = fma(p, t, splat(0.3852836334f));
  p = fma(p, t, splat(0.9987824596f));
  p = fma(p, t, splat(-1.26545493f));
  return t * exp(p - z * z);
}

}  // namespace headrace::HR_ISA
