#include <cstring>
#include <stdexcept>
#include <vector>

#include "bindings/bindings.h"
#include "gemm/panels.h"

namespace headrace {
namespace {

constexpr int64_t kMostRank = 4096;

// Whether every element is a bf16 number, which then takes half the memory.
bool is_bf16(const Array2<float>& matrix) {
  const auto* floats = matrix.data();
  for (size_t i = 0; i < matrix.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, floats + i, sizeof(bits));
    if ((bits & 0xffffu) != 0) return false;
  }
  return true;
}

AdapterMatrix pack(const Array2<float>& matrix, Mapping& memory) {
  const auto rows = static_cast<int64_t>(matrix.shape(0));
  const auto columns = static_cast<int64_t>(matrix.shape(1));
  const bool is_half = is_bf16(matrix);
  const int64_t size = is_half ? 2 : 4;
  memory = Mapping(static_cast<size_t>(num_panels(rows) * columns * kPanel * size));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t place = (r / kPanel * columns + c) * kPanel + r % kPanel;
      uint32_t bits = 0;
      std::memcpy(&bits, matrix.data() + r * columns + c, sizeof(bits));
      if (is_half) {
        const auto word = static_cast<uint16_t>(bits >> 16);
        std::memcpy(memory.data() + place * size, &word, sizeof(word));
      } else {
        std::memcpy(memory.data() + place * size, &bits, sizeof(bits));
      }
    }
  }
  return {memory.data(), is_half};
}

}  // namespace

Adapters::Adapters(int64_t num_outputs, int64_t num_inputs, int32_t capacity) {
  if (num_outputs < 1 || num_inputs < 1 || capacity < 1 || capacity > kMostAdapters) {
    throw std::invalid_argument("Adapters have a shape and are 1 to 256.");
  }
  entries_.resize(static_cast<size_t>(capacity));
  memory_.resize(2 * static_cast<size_t>(capacity));
  table = {entries_.data(), capacity, num_outputs, num_inputs};
}

void Adapters::set(int32_t index, const Array2<float>& down, const Array2<float>& up) {
  const auto rank = static_cast<int64_t>(down.shape(0));
  if (index < 1 || index > table.capacity) throw std::invalid_argument("There is no such adapter.");
  if (static_cast<int64_t>(down.shape(1)) != table.num_inputs ||
      static_cast<int64_t>(up.shape(0)) != table.num_outputs ||
      static_cast<int64_t>(up.shape(1)) != rank || rank < 1 || rank > kMostRank) {
    throw std::invalid_argument("An adapter's matrices do not fit the linear.");
  }
  const auto place = static_cast<size_t>(index - 1);
  AdapterEntry entry;
  entry.down = pack(down, memory_[2 * place]);
  entry.up = pack(up, memory_[2 * place + 1]);
  entry.rank = static_cast<int32_t>(rank);
  entries_[place] = entry;
}

void Adapters::clear(int32_t index) {
  if (index < 1 || index > table.capacity) throw std::invalid_argument("There is no such adapter.");
  const auto place = static_cast<size_t>(index - 1);
  entries_[place] = {};
  memory_[2 * place] = Mapping();
  memory_[2 * place + 1] = Mapping();
}

void bind_adapters(nb::module_& module) {
  nb::class_<Adapters>(module, "Adapters")
      .def(nb::init<int64_t, int64_t, int32_t>(), nb::arg("num_outputs"), nb::arg("num_inputs"),
           nb::arg("capacity"))
      .def("set", &Adapters::set, nb::arg("index"), nb::arg("down"), nb::arg("up"))
      .def("clear", &Adapters::clear, nb::arg("index"))
      .def_prop_ro("num_outputs", [](const Adapters& self) { return self.table.num_outputs; })
      .def_prop_ro("num_inputs", [](const Adapters& self) { return self.table.num_inputs; });
}

}  // namespace headrace
