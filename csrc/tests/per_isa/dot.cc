// The 4-bit dot product of one instruction set with tables that no format has yet, against plain
// arithmetic.
#include "gemm/dot.h"

#include <cstring>

#include "base/simd.h"
#include "tests/check.h"

namespace headrace::HR_ISA {
namespace {

// Values of the 4-bit normal-float kind, 128 added; and one that fits four bits again.
constexpr CodeTable kWide = {
    {0, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 255}};
constexpr CodeTable kNarrow = {{0, 1, 2, 3, 4, 6, 8, 12, 15, 14, 13, 11, 9, 7, 5, 10}};

constexpr int kRows = 3;

struct Case {
  alignas(kAlignment) std::byte codes[256];
  Codes x[kRows];
  int32_t start[kRows];
};

int code_of(const Case& data, int lane, int input) {
  const int quad = input / 4;
  const int pair = std::to_integer<int>(data.codes[64 * (quad / 2) + 4 * lane + input % 4]);
  return quad % 2 == 0 ? pair & 15 : pair >> 4;
}

template <const CodeTable& kTable>
void check_dot(const Case& data) {
  IntVec dot[kRows];
  for (int m = 0; m < kRows; ++m) dot[m] = splat_int(data.start[m]);
  dot_w4<kTable, kRows>(data.codes, data.x, dot);
  for (int m = 0; m < kRows; ++m) {
    float found[kPanel];  // exact: sums stay below 2^24
    store(found, to_float(dot[m]));
    for (int lane = 0; lane < kPanel; ++lane) {
      int32_t sum = data.start[m];
      for (int k = 0; k < kGroup; ++k) sum += kTable.values[code_of(data, lane, k)] * data.x[m][k];
      CHECK(found[lane] == static_cast<float>(sum), "row %d lane %d: %g for %d", m, lane,
            static_cast<double>(found[lane]), sum);
    }
  }
}

void check_tables(const Case& data) {
  check_dot<kPlainCodes>(data);
  check_dot<kNarrow>(data);
  check_dot<kWide>(data);
}

}  // namespace

void test_dot() {
  uint32_t state = 1;
  const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 24; };
  Case data;
  for (int round = 0; round < 20; ++round) {
    for (std::byte& pair : data.codes) pair = static_cast<std::byte>(next());
    for (Codes& row : data.x) {
      for (int8_t& code : row) code = static_cast<int8_t>(next());
    }
    for (int32_t& start : data.start) start = static_cast<int32_t>(next()) * 1000 - 100000;
    check_tables(data);
  }
  // The largest sums of either sign.
  for (const uint8_t pair : {0xff, 0x88}) {
    for (const int code : {-128, 127}) {
      std::memset(data.codes, pair, sizeof(data.codes));
      std::memset(data.x, code, sizeof(data.x));
      check_tables(data);
    }
  }
}

}  // namespace headrace::HR_ISA
