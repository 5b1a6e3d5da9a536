#include <exception>
#include <stdexcept>

#include "base/isa.h"
#include "bindings/bindings.h"

namespace headrace {
namespace {

// Refused arguments are headrace.core.errors.KernelError; std::bad_alloc is MemoryError by nanobind
// itself.
void raise_kernel_error(const std::exception_ptr& pointer, void* error_class) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(static_cast<PyObject*>(error_class), error.what());
  }
}

}  // namespace
}  // namespace headrace

NB_MODULE(_native, module) {
  using namespace headrace;
  module.doc() = "The CPU kernels; see csrc/README.md.";
  // An exception's traceback may hold a program until exit; that is no leak worth a warning.
  nb::set_leak_warnings(false);
  // Held for the life of the process, like the translator itself.
  nb::object error_class = nb::module_::import_("headrace.core.errors").attr("KernelError");
  nb::register_exception_translator(raise_kernel_error, error_class.release().ptr());

  nb::enum_<DType>(module, "DType")
      .value("F32", DType::kF32)
      .value("BF16", DType::kBF16)
      .value("F16", DType::kF16)
      .value("Q8", DType::kQ8)
      .value("INT8", DType::kInt8)
      .value("INT16", DType::kInt16);
  nb::enum_<Rows>(module, "Rows").value("TOKENS", Rows::kTokens).value("OUTPUTS", Rows::kOutputs);
  nb::enum_<WeightFormat>(module, "WeightFormat")
      .value("W4G32", WeightFormat::kW4G32)
      .value("W8G32", WeightFormat::kW8G32)
      .value("W8G16", WeightFormat::kW8G16)
      .value("BF16", WeightFormat::kBF16)
      .value("F16", WeightFormat::kF16)
      .value("F32", WeightFormat::kF32);
  nb::enum_<Isa>(module, "Isa")
      .value("GENERIC", Isa::kGeneric)
      .value("AVX2", Isa::kAvx2)
      .value("AVX512", Isa::kAvx512)
      .value("AMX", Isa::kAmx)
      .value("NEON", Isa::kNeon);
  nb::enum_<Activation>(module, "Activation")
      .value("SILU", Activation::kSilu)
      .value("GELU_TANH", Activation::kGeluTanh)
      .value("GELU", Activation::kGelu);

  nb::class_<CpuFeatures>(module, "CpuFeatures")
      .def_ro("has_avx2", &CpuFeatures::has_avx2)
      .def_ro("has_avx512", &CpuFeatures::has_avx512)
      .def_ro("has_avx512_bf16", &CpuFeatures::has_avx512_bf16)
      .def_ro("has_amx", &CpuFeatures::has_amx)
      .def_ro("has_neon", &CpuFeatures::has_neon);
  module.def("detect_cpu", &detect_cpu);

  bind_weights(module);
  bind_adapters(module);
  bind_program(module);
  bind_sampling(module);
}
