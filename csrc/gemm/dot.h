// The integer dot products of the instruction set that is being compiled.
#pragma once

#if defined(HR_ISA_AVX512)
#include "gemm/dot_avx512.h"
#elif defined(HR_ISA_AVX2)
#include "gemm/dot_avx2.h"
#elif defined(HR_ISA_NEON)
#include "gemm/dot_neon.h"
#else
#include "gemm/dot_generic.h"
#endif
