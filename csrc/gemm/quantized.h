// What every micro-kernel of 4- and 8-bit weights shares: the operand of a tile, and how it is
// filled. Per instruction set, see base/simd.h.
#pragma once

#include "gemm/operand.h"
#include "gemm/tiles.h"

namespace headrace::HR_ISA {

template <WeightFormat kFormat>
inline constexpr int kScalesOf = kFormat == WeightFormat::kW8G16 ? 2 : 1;

template <WeightFormat kFormat, bool kHasMins, int MR>
using Group = TileGroup<MR, kScalesOf<kFormat>, kHasMins>;

HR_INLINE const uint16_t* halves(const std::byte* p) {
  return reinterpret_cast<const uint16_t*>(p);
}

// The `prepare` of a TileChoice.
template <WeightFormat kFormat, bool kHasMins, int MR>
void prepare(const TileJob& job, int tile) {
  const int row = tile * MR;
  const int count = job.num_rows - row < MR ? job.num_rows - row : MR;
  fill_tile<MR, kScalesOf<kFormat>, kHasMins>(
      job.x + row * job.x_stride, job.x_stride, count, job.layout.groups, job.offset,
      reinterpret_cast<Group<kFormat, kHasMins, MR>*>(job.operand) + tile * job.layout.groups);
}

}  // namespace headrace::HR_ISA
