// A recorded model: a flat list of ops over an arena, replayed with the numbers of each step.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/kernels.h"
#include "base/kv_cache.h"
#include "base/memory.h"
#include "base/types.h"
#include "program/device.h"
#include "program/ops.h"

namespace headrace {

struct StepLimits {
  int32_t max_tokens = 0;
  int32_t max_outputs = 0;
};

// Arrays of a step with their lengths, before they are trusted.
struct StepArrays {
  struct View {
    const int32_t* data = nullptr;
    int64_t size = 0;
  };
  struct Table {
    const int32_t* data = nullptr;
    int64_t rows = 0;
    int64_t width = 0;
  };
  View token_ids, positions, query_starts, key_starts, slots, output_rows;
  View adapters;  // empty: no row has one
  struct Rows {
    const float* data = nullptr;
    int64_t rows = 0;
    int64_t width = 0;
  };
  Rows embeddings;  // empty: no token is given as a vector
  std::vector<Table> block_tables;
};

struct OpTime {
  int64_t calls = 0;
  int64_t nanoseconds = 0;
};

class Program {
 public:
  Program(std::shared_ptr<Device> device, std::shared_ptr<KVCache> cache, StepLimits limits);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // A new buffer: zeroed memory, touched lazily. Throws std::invalid_argument for a width below 1.
  Buffer add_buffer(Rows rows, int64_t width, DType dtype);

  // Appends an op. `owners` keep what its pointers refer to alive.
  void add(OpArgs args, std::vector<std::shared_ptr<const void>> owners);

  // One step. Throws std::invalid_argument for arrays that break the limits or point outside of
  // something; nothing has run then.
  void run(const StepArrays& arrays);

  // Gives the arena's memory back, between steps: its buffers read as zeros again. Throws
  // std::bad_alloc.
  void clear();

  // For tests and measurements: a row of float32 into or out of a buffer of any dtype.
  void write(const Buffer& buffer, const float* rows, int64_t num_rows, int64_t width);

  const StepLimits& limits() const { return limits_; }
  const KVCache& cache() const { return *cache_; }
  int max_rows(Rows rows) const {
    return rows == Rows::kTokens ? limits_.max_tokens : limits_.max_outputs;
  }
  int64_t arena_bytes() const { return arena_bytes_; }
  size_t num_ops() const { return ops_.size(); }

  void set_profiling(bool enabled);
  // Whether steps of many rows run in row blocks (they do unless told otherwise; results are the
  // same to the bit). For tests and measurements.
  void set_row_blocks(bool enabled) { uses_row_blocks_ = enabled; }
  const std::array<OpTime, kOpNames.size()>& times() const { return times_; }

 private:
  struct Op {
    OpArgs args;
    std::vector<std::shared_ptr<const void>> owners;
  };

  StepInputs check(const StepArrays& arrays);
  void check_sequences(const StepArrays& arrays) const;
  size_t end_of_row_ops(size_t first) const;
  void run_whole(const Op& op, const StepInputs& inputs);
  void run_blocks(size_t first, size_t last, const StepInputs& inputs);
  void run_block(size_t first, size_t last, const StepInputs& inputs, TokenRange tokens,
                 int thread);

  std::shared_ptr<Device> device_;
  std::shared_ptr<KVCache> cache_;
  StepLimits limits_;
  int64_t vocab_size_;           // smallest table that token ids index
  int64_t embedding_width_ = 0;  // of every table's rows; 0 without, -1 where they differ
  int64_t num_positions_ = std::numeric_limits<int32_t>::max();  // and that positions index
  bool uses_cache_ = false;
  int32_t num_adapters_ = 0;  // that every adapted linear has a place for
  int64_t arena_bytes_ = 0;
  std::vector<Mapping> arena_;
  std::vector<Op> ops_;
  std::vector<const int32_t*> tables_;
  std::vector<int64_t> table_widths_;
  std::vector<TokenRange> blocks_;  // of the step that runs
  bool uses_row_blocks_ = true;
  bool is_profiling_ = false;
  std::vector<std::array<int64_t, kOpNames.size()>> thread_nanoseconds_;  // of one run_blocks
  std::array<OpTime, kOpNames.size()> times_{};
};

}  // namespace headrace
