// Vec: sixteen floats, the one vector type that kernels are written in.
//
// A kernel source is compiled once per instruction set with HR_ISA naming the set (generic, avx2,
// avx512, neon); it includes this header and lives in `namespace headrace::HR_ISA`. All functions
// are forced inline: no code of one set may be shared with another. min and max return their second
// argument when either is NaN. Results are reproducible: fused multiply-add only where `fma` is
// written, reductions in a fixed tree.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/types.h"

#define HR_INLINE HR_ALWAYS_INLINE

#if defined(HR_ISA_AVX512)
#include "base/simd_avx512.h"
#elif defined(HR_ISA_AVX2)
#include "base/simd_avx2.h"
#elif defined(HR_ISA_NEON)
#include "base/simd_neon.h"
#else
#include "base/simd_generic.h"
#endif

#include "base/simd_math.h"
