// What the binding sources share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <vector>

#include "base/adapters.h"
#include "base/memory.h"
#include "base/types.h"

namespace headrace {

namespace nb = nanobind;

template <typename T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A packed weight and the array that owns its bytes.
struct Weight {
  PackedWeight packed;
  Array1<uint8_t> owner;
};

// A float32 vector, aligned and padded with zeros to whole Vecs.
struct Vector {
  explicit Vector(const Array1<float>& values);
  const float* data() const { return reinterpret_cast<const float*>(memory.data()); }

  Mapping memory;
  int64_t size;
};

// The adapters of one linear. Changed between steps, or while steps run that do not use the entry.
class Adapters {
 public:
  Adapters(int64_t num_outputs, int64_t num_inputs, int32_t capacity);
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;
  void set(int32_t index, const Array2<float>& down, const Array2<float>& up);
  void clear(int32_t index);

  AdapterTable table;

 private:
  std::vector<AdapterEntry> entries_;
  std::vector<Mapping> memory_;  // down and up of each
};

void bind_adapters(nb::module_& module);
void bind_weights(nb::module_& module);
void bind_program(nb::module_& module);
void bind_sampling(nb::module_& module);

}  // namespace headrace
