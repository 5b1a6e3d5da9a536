#include "program/row_blocks.h"

#include <algorithm>

namespace headrace {
namespace {

// Fewer rows per thread than this are better shared out by outputs.
constexpr int kRowsPerThread = 112;
// Rows of a block: enough that weights from the last-level cache or memory are no limit, few enough
// that the operand of a linear stays in the first-level cache beside a panel.
constexpr int kLargestBlock = 2 * kRowStep;

}  // namespace

void cut_rows(int num_rows, int num_threads, std::vector<TokenRange>& blocks) {
  if (num_rows < kRowsPerThread * num_threads) return;
  for (int first = 0; first < num_rows;) {
    const int share = (num_rows - first) / (2 * num_threads) / kRowStep * kRowStep;
    const int size = std::min(std::clamp(share, kRowStep, kLargestBlock), num_rows - first);
    blocks.push_back({first, size});
    first += size;
  }
}

}  // namespace headrace
