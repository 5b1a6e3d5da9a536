// Linear layers with bf16 weights and bf16 rows on vdpbf16ps: pairs of inputs ascending, one chain
// an output. Compiled once, for machines that have the instruction.
#include "base/kernels.h"
#include "gemm/tiles.h"

namespace headrace::HR_ISA {
namespace {

template <int MR, int NP>
HR_INLINE void run_tile(const TileJob& job, int64_t p, int row, const Ahead& ahead) {
  const std::byte* panel = job.panels + p * job.layout.bytes;
  const std::byte* x = job.x + row * job.x_stride;
  __m512 acc[MR][NP];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < NP; ++n) acc[m][n] = _mm512_setzero_ps();
  }
  const int64_t pairs = (job.num_inputs + 1) / 2;
  const int64_t whole = job.num_inputs / 2;
  for (int64_t k = 0; k < pairs; ++k) {
    prefetch_line(job, ahead, k * kAlignment);
    __m512bh weight[NP];
#pragma GCC unroll 4
    for (int n = 0; n < NP; ++n) {
      weight[n] = (__m512bh)_mm512_load_si512(panel + n * job.layout.bytes + k * kAlignment);
    }
    const uint32_t keep = k < whole ? 0xffffffffu : 0xffffu;  // an odd last input has no partner
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      uint32_t two;
      std::memcpy(&two, x + m * job.x_stride + 4 * k, 4);
      const auto value = (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(two & keep));
#pragma GCC unroll 4
      for (int n = 0; n < NP; ++n) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], weight[n], value);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < NP; ++n) {
      if (row + m < job.last_row) store_tile_row(job, p + n, row + m, {acc[m][n]});
    }
  }
}

template <int MR, int NP>
HR_INLINE void run_panels(const TileJob& job, int64_t p) {
  for_each_tile<MR, NP>(job, p,
                        [&](int row, const Ahead& ahead) { run_tile<MR, NP>(job, p, row, ahead); });
}

template <int MR, int NP>
void run(const TileJob& job) {
  int64_t p = job.first_panel;
  for (; p + NP <= job.last_panel; p += NP) run_panels<MR, NP>(job, p);
  for (; p < job.last_panel; ++p) run_panels<MR, 1>(job, p);
}

template <int MR>
constexpr TileChoice make_choice() {
  return {MR, run<MR, 4>, nullptr, 0};
}

constexpr TileChoice kChoices[] = {make_choice<1>(), make_choice<2>(), make_choice<3>(),
                                   make_choice<4>(), make_choice<5>(), make_choice<6>()};

}  // namespace

void linear_bf16(const LinearArgs& args, OpContext& context) {
  run_tiles(args, context, kChoices, sizeof(kChoices) / sizeof(TileChoice), 0.5f, 4);
}

}  // namespace headrace::HR_ISA
