// What stays while programs come and go: an instruction set's kernels, a thread pool, scratch
// memory.
#pragma once

#include <vector>

#include "base/isa.h"
#include "base/kernels.h"
#include "base/memory.h"
#include "base/parallel.h"

namespace headrace {

class Device {
 public:
  // Throws std::invalid_argument when this machine lacks the set.
  Device(Isa isa, int num_threads);

  Isa isa() const { return isa_; }
  const KernelTable& kernels() const { return *kernels_; }
  ThreadPool& pool() { return pool_; }
  Mapping& scratch() { return scratch_[0]; }

  // For an op that one thread of the pool runs alone: a pool of that thread only, and its memory.
  ThreadPool& no_pool() { return no_pool_; }
  Mapping& scratch(int thread) { return scratch_[static_cast<size_t>(thread)]; }

  // The dtype that the operand of a linear with this weight must have.
  DType operand_dtype(WeightFormat format) const;

 private:
  Isa isa_;
  CpuFeatures cpu_;
  const KernelTable* kernels_;
  ThreadPool pool_;
  ThreadPool no_pool_{1};
  std::vector<Mapping> scratch_;  // per thread
};

}  // namespace headrace
