// Linear layers with float weights and float32 rows: one chain of multiply-adds per output, inputs
// ascending.
#include "base/kernels.h"
#include "gemm/linear.h"
#include "gemm/tiles.h"

namespace headrace::HR_ISA {
namespace {

// Two adjacent inputs of a bf16 panel: 16 words, the even input in the low half.
struct Pair {
  Vec even, odd;
};

#if defined(HR_ISA_AVX512)
HR_INLINE Pair load_pair(const std::byte* p) {
  const __m512i words = _mm512_load_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))}};
}
#elif defined(HR_ISA_AVX2)
HR_INLINE Pair load_pair(const std::byte* p) {
  const __m256i lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32));
  const __m256i upper = _mm256_set1_epi32(-65536);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(lo, upper)),
           _mm256_castsi256_ps(_mm256_and_si256(hi, upper))}};
}
#elif defined(HR_ISA_NEON)
HR_INLINE Pair load_pair(const std::byte* p) {
  Pair pair;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t words = vld1q_u32(reinterpret_cast<const uint32_t*>(p + 16 * i));
    pair.even.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
    pair.odd.v[i] = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)));
  }
  return pair;
}
#else
HR_INLINE Pair load_pair(const std::byte* p) {
  Pair pair;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Int4 words;
    std::memcpy(&words, p + 16 * i, sizeof(words));
    pair.even.v[i] = (Float4)(words << 16);
    pair.odd.v[i] = (Float4)(words & -65536);
  }
  return pair;
}
#endif

// Sixteen outputs' weights of input k.
template <WeightFormat kFormat>
HR_INLINE Vec load_weight(const std::byte* panel, int64_t k) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return load(reinterpret_cast<const float*>(panel) + k * kPanel);
  } else {
    return load_f16(reinterpret_cast<const uint16_t*>(panel) + k * kPanel);
  }
}

template <int MR, int NP>
HR_INLINE void add_products(const Vec (&weight)[NP], const float* x, int64_t stride,
                            Vec (&acc)[MR][NP]) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    const Vec value = splat(x[m * stride]);
#pragma GCC unroll 4
    for (int n = 0; n < NP; ++n) acc[m][n] = fma(weight[n], value, acc[m][n]);
  }
}

// MR rows from `row` on times NP panels from `p` on.
template <WeightFormat kFormat, int MR, int NP>
HR_INLINE void run_tile(const TileJob& job, int64_t p, int row, const Ahead& ahead) {
  const std::byte* panel = job.panels + p * job.layout.bytes;
  const int64_t stride = job.x_stride / static_cast<int64_t>(sizeof(float));
  const float* x = reinterpret_cast<const float*>(job.x + row * job.x_stride);
  const int64_t num_inputs = job.num_inputs;
  Vec acc[MR][NP];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < NP; ++n) acc[m][n] = zero();
  }
  if constexpr (kFormat == WeightFormat::kBF16) {
    for (int64_t k = 0; k < num_inputs; k += 2) {
      prefetch_line(job, ahead, k / 2 * kAlignment);
      Vec even[NP], odd[NP];
#pragma GCC unroll 4
      for (int n = 0; n < NP; ++n) {
        const Pair pair = load_pair(panel + n * job.layout.bytes + k / 2 * kAlignment);
        even[n] = pair.even;
        odd[n] = pair.odd;
      }
      add_products<MR, NP>(even, x + k, stride, acc);
      if (k + 1 < num_inputs) add_products<MR, NP>(odd, x + k + 1, stride, acc);
    }
  } else {
    for (int64_t k = 0; k < num_inputs; ++k) {
      constexpr int64_t kBytes = kFormat == WeightFormat::kF32 ? 64 : 32;
      if (k * kBytes % kAlignment == 0) prefetch_line(job, ahead, k * kBytes);
      Vec weight[NP];
#pragma GCC unroll 4
      for (int n = 0; n < NP; ++n)
        weight[n] = load_weight<kFormat>(panel + n * job.layout.bytes, k);
      add_products<MR, NP>(weight, x + k, stride, acc);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < NP; ++n) {
      if (row + m < job.last_row) store_tile_row(job, p + n, row + m, acc[m][n]);
    }
  }
}

template <WeightFormat kFormat, int MR, int NP>
HR_INLINE void run_panels(const TileJob& job, int64_t p) {
  for_each_tile<MR, NP>(
      job, p, [&](int row, const Ahead& ahead) { run_tile<kFormat, MR, NP>(job, p, row, ahead); });
}

template <WeightFormat kFormat, int MR, int NP>
void run(const TileJob& job) {
  int64_t p = job.first_panel;
  for (; p + NP <= job.last_panel; p += NP) run_panels<kFormat, MR, NP>(job, p);
  for (; p < job.last_panel; ++p) run_panels<kFormat, MR, 1>(job, p);
}

template <WeightFormat kFormat, int MR, int NP>
constexpr TileChoice make_choice() {
  return {MR, run<kFormat, MR, NP>, nullptr, 0};
}

template <WeightFormat kFormat, int NP, int... kHeights>
inline constexpr TileChoice kChoicesOf[] = {make_choice<kFormat, kHeights, NP>()...};

// As many accumulators as registers allow, beside the weights of one input.
#if defined(HR_ISA_AVX512)
inline constexpr int kPanelsAtOnce = 4;
template <WeightFormat kFormat>
constexpr auto& kChoices = kChoicesOf<kFormat, kPanelsAtOnce, 1, 2, 4, 6>;
#elif defined(HR_ISA_AVX2)
inline constexpr int kPanelsAtOnce = 1;
template <WeightFormat kFormat>
constexpr auto& kChoices = kChoicesOf<kFormat, kPanelsAtOnce, 1, 2, 3, 4, 5>;
#elif defined(HR_ISA_NEON)
inline constexpr int kPanelsAtOnce = 1;
template <WeightFormat kFormat>
constexpr auto& kChoices = kChoicesOf<kFormat, kPanelsAtOnce, 1, 2, 3, 4>;
#else
inline constexpr int kPanelsAtOnce = 1;
template <WeightFormat kFormat>
constexpr auto& kChoices = kChoicesOf<kFormat, kPanelsAtOnce, 1, 2>;
#endif

template <WeightFormat kFormat>
void run_format(const LinearArgs& args, OpContext& context) {
  constexpr int kCount = sizeof(kChoices<kFormat>) / sizeof(TileChoice);
  run_tiles(args, context, kChoices<kFormat>, kCount, 0.5f, kPanelsAtOnce);
}

}  // namespace

void linear_dense(const LinearArgs& args, OpContext& context) {
  switch (args.weight.format) {
    case WeightFormat::kBF16:
      return run_format<WeightFormat::kBF16>(args, context);
    case WeightFormat::kF16:
      return run_format<WeightFormat::kF16>(args, context);
    default:
      return run_format<WeightFormat::kF32>(args, context);
  }
}

}  // namespace headrace::HR_ISA
