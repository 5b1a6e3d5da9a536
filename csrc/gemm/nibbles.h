// What 4-bit codes stand for. Integer dot products are templates of it, so a format with another
// table (IQ4_NL, NF4, MXFP4) needs a row here and no kernel. Per instruction set, see base/simd.h.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace headrace::HR_ISA {

// The unsigned weight of each code; the offset of the weight makes it signed.
struct CodeTable {
  uint8_t values[16];
};

inline constexpr CodeTable kPlainCodes = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};

constexpr bool is_plain(const CodeTable& table) {
  for (int i = 0; i < 16; ++i) {
    if (table.values[i] != i) return false;
  }
  return true;
}

// Whether every weight fits four bits again, so that products can be summed in 16 bits.
constexpr bool is_narrow(const CodeTable& table) {
  for (const uint8_t value : table.values) {
    if (value > 15) return false;
  }
  return true;
}

constexpr bool has_nibbles(WeightFormat format) { return format == WeightFormat::kW4G32; }

// Of a format with nibbles.
constexpr const CodeTable& code_table(WeightFormat) { return kPlainCodes; }

}  // namespace headrace::HR_ISA
