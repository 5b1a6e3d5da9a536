// What the binding sources share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>

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

void bind_weights(nb::module_& module);
void bind_program(nb::module_& module);
void bind_sampling(nb::module_& module);

}  // namespace headrace
