#include <cstring>
#include <stdexcept>

#include "bindings/bindings.h"
#include "gemm/panels.h"

namespace headrace {
namespace {

// Everything that a kernel will trust is checked here: a truncated or foreign file must not be read
// past its end.
std::shared_ptr<Weight> make_weight(WeightFormat format, int64_t num_outputs, int64_t num_inputs,
                                    bool has_mins, int offset, const Array1<uint8_t>& data) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (num_outputs < 1 || num_inputs < 1 || num_outputs > kMost || num_inputs > kMost) {
    throw std::invalid_argument("A weight has at least one output and one input.");
  }
  if (reinterpret_cast<uintptr_t>(data.data()) % kAlignment != 0) {
    throw std::invalid_argument("Packed weights must be aligned to 64 bytes.");
  }
  const PanelLayout layout = panel_layout(format, num_inputs, has_mins);
  const int64_t bytes = kWeightHeader + num_panels(num_outputs) * layout.bytes;
  if (static_cast<int64_t>(data.size()) != bytes) {
    throw std::invalid_argument("A packed weight has the wrong number of bytes.");
  }
  WeightHeader header;
  std::memcpy(&header, data.data(), sizeof(header));
  const bool matches =
      header.magic == kWeightMagic && header.format == static_cast<uint8_t>(format) &&
      header.has_mins == static_cast<uint8_t>(has_mins) && header.offset == offset &&
      header.num_outputs == num_outputs && header.num_inputs == num_inputs &&
      header.exponent >= -126 && header.exponent <= 126 && offset >= 0 && offset <= 128 &&
      !(has_mins && offset != 0);
  if (!matches)
    throw std::invalid_argument("A packed weight has a header that does not belong to it.");
  const PackedWeight packed{reinterpret_cast<const std::byte*>(data.data()),
                            num_outputs,
                            num_inputs,
                            format,
                            has_mins,
                            offset};
  return std::make_shared<Weight>(Weight{packed, data});
}

}  // namespace

Vector::Vector(const Array1<float>& values)
    : memory(static_cast<size_t>(round_up(static_cast<int64_t>(values.size()), kPanel)) *
             sizeof(float)),
      size(static_cast<int64_t>(values.size())) {
  if (size > 0) std::memcpy(memory.data(), values.data(), values.size() * sizeof(float));
}

void bind_weights(nb::module_& module) {
  nb::class_<Weight>(module, "Weight")
      .def_prop_ro("format", [](const Weight& weight) { return weight.packed.format; })
      .def_prop_ro("num_outputs", [](const Weight& weight) { return weight.packed.num_outputs; })
      .def_prop_ro("num_inputs", [](const Weight& weight) { return weight.packed.num_inputs; });
  module.def("make_weight", &make_weight, nb::arg("format"), nb::arg("num_outputs"),
             nb::arg("num_inputs"), nb::arg("has_mins"), nb::arg("offset"), nb::arg("data"));
  nb::class_<Vector>(module, "Vector")
      .def(nb::init<const Array1<float>&>(), nb::arg("values"))
      .def_ro("size", &Vector::size);
}

}  // namespace headrace
