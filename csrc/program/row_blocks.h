// Row blocks: how a step of many tokens runs the ops between two attentions.
//
// Norms, linears, activations and rotation look at one row at a time. So each thread takes a few
// rows through all of them, one op after the other, without waiting for anyone; what an op writes
// is in the thread's own cache when the next one reads it. Weights are read once per block.
#pragma once

#include <atomic>
#include <exception>
#include <vector>

#include "base/kernels.h"

namespace headrace {

// Blocks are multiples of this, but for the last: a multiple of the height of most micro-kernels.
inline constexpr int kRowStep = 12;

// Appends the blocks of a step; none when its rows are too few to give every thread several.
// Blocks get smaller towards the end, so that threads finish together. Allocates nothing within the
// capacity of num_rows / kRowStep + 1.
void cut_rows(int num_rows, int num_threads, std::vector<TokenRange>& blocks);

// Keeps the first exception that threads meet, for the caller.
class FirstError {
 public:
  template <typename Fn>
  void guard(Fn fn) {
    if (has_error_.load(std::memory_order_relaxed)) return;
    try {
      fn();
    } catch (...) {
      if (!has_error_.exchange(true)) error_ = std::current_exception();
    }
  }
  // After all threads are done.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> has_error_{false};
  std::exception_ptr error_;
};

}  // namespace headrace
