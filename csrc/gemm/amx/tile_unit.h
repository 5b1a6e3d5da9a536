// The tile registers of the thread that runs. Only for sources that are compiled with AMX.
#pragma once

#include <cstdint>

#include "base/simd.h"
#include "gemm/amx/tile_config.h"

namespace headrace::HR_ISA {

// In assembly: the compilers' own functions want register numbers as literals, and some do not say
// that they read memory.
class TileUnit {
 public:
  HR_INLINE explicit TileUnit(const TileConfig& config) {
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  // The last call: idle registers are not saved on context switches. No destructor, because kernels
  // are compiled without anything of exceptions.
  HR_INLINE void release() { asm volatile("tilerelease"); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

  template <int kTile>
  HR_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // `stride` is in bytes.
  template <int kTile>
  HR_INLINE void load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  HR_INLINE void store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  // sums += signed bytes of `a` times unsigned bytes of `b`, in quads.
  template <int kSums, int kA, int kB>
  HR_INLINE void dot() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
  }
};

}  // namespace headrace::HR_ISA
