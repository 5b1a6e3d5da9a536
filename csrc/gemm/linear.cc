#include "gemm/linear.h"

#include "gemm/panels.h"

namespace headrace::HR_ISA {

void linear(const LinearArgs& args, OpContext& context) {
  if (is_quantized(args.weight.format)) return linear_quantized(args, context);
#if defined(HR_ISA_AVX512)
  if (args.x.dtype == DType::kBF16) return avx512_bf16::linear_bf16(args, context);
#endif
  linear_dense(args, context);
}

}  // namespace headrace::HR_ISA
