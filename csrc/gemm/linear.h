// The kinds of linear, behind `linear`.
#pragma once

#include "base/kernels.h"

namespace headrace::HR_ISA {

void linear_quantized(const LinearArgs& args, OpContext& context);  // x is Q8
void linear_dense(const LinearArgs& args, OpContext& context);      // x is f32

}  // namespace headrace::HR_ISA

#if defined(HR_ISA_AVX512)
namespace headrace::avx512_bf16 {

void linear_bf16(const LinearArgs& args, OpContext& context);  // weight and x are bf16

}  // namespace headrace::avx512_bf16
#endif
