#include "program/device.h"

#include <stdexcept>

#include "gemm/panels.h"

namespace headrace {

Device::Device(Isa isa, int num_threads)
    : isa_(isa),
      cpu_(detect_cpu()),
      kernels_(find_kernels(isa, cpu_)),
      pool_(num_threads),
      scratch_(static_cast<size_t>(num_threads)) {
  if (kernels_ == nullptr) throw std::invalid_argument("This machine lacks that instruction set.");
}

DType Device::operand_dtype(WeightFormat format) const {
  if (is_quantized(format)) return DType::kQ8;
  const bool has_dot = (isa_ == Isa::kAvx512 || isa_ == Isa::kAmx) && cpu_.has_avx512_bf16;
  return format == WeightFormat::kBF16 && has_dot ? DType::kBF16 : DType::kF32;
}

}  // namespace headrace
