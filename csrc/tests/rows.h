// Rows of a buffer as numbers.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace headrace::tests {

// [num_rows, width] of what a buffer of f32, bf16 or Q8 holds.
inline std::vector<double> read_rows(const Buffer& x, int num_rows) {
  std::vector<double> values;
  for (int t = 0; t < num_rows; ++t) {
    for (int k = 0; k < x.width; ++k) {
      if (x.dtype == DType::kQ8) {
        const Q8Group& group = x.row<Q8Group>(t)[k / kGroup];
        values.push_back(double{group.scale} * group.codes[k % kGroup]);
      } else if (x.dtype == DType::kBF16) {
        values.push_back(std::bit_cast<float>(uint32_t{x.row<uint16_t>(t)[k]} << 16));
      } else {
        values.push_back(x.row(t)[k]);
      }
    }
  }
  return values;
}

}  // namespace headrace::tests
