// Packed weights made byte by byte from the drawing in kernels/panels.py, and what they stand for.
#pragma once

#include <vector>

#include "base/memory.h"
#include "base/types.h"

namespace headrace::tests {

struct TestWeight {
  PackedWeight packed;
  Mapping memory;
  std::vector<double> values;  // [N, K]
};

TestWeight make_weight(WeightFormat format, bool has_mins, int64_t num_outputs, int64_t num_inputs,
                       unsigned seed);

}  // namespace headrace::tests
