#include "program/program.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "gemm/panels.h"
#include "program/row_blocks.h"
#include "program/stopwatch.h"

namespace headrace {
namespace {

int64_t row_bytes(int64_t width, DType dtype) {
  switch (dtype) {
    case DType::kQ8:
      return round_up(width, kGroup) / kGroup * static_cast<int64_t>(sizeof(Q8Group));
    case DType::kF32:
      return width * 4;
    default:
      return width * 2;
  }
}

// Rows at a distance of a multiple of 1 KiB would fight for the same cache sets.
int64_t row_stride(int64_t width, DType dtype) {
  const int64_t bytes = round_up(row_bytes(width, dtype), kAlignment);
  return bytes % 1024 == 0 ? bytes + kAlignment : bytes;
}

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

void check_range(const StepArrays::View& view, int64_t limit, const char* name,
                 int64_t lowest = 0) {
  for (int64_t i = 0; i < view.size; ++i) {
    if (view.data[i] < lowest || view.data[i] >= limit) {
      refuse(std::string(name) + " holds " + std::to_string(view.data[i]) + ", outside " +
             std::to_string(lowest) + ".." + std::to_string(limit - 1) + ".");
    }
  }
}

}  // namespace

Program::Program(std::shared_ptr<Device> device, std::shared_ptr<KVCache> cache, StepLimits limits)
    : device_(std::move(device)),
      cache_(std::move(cache)),
      limits_(limits),
      vocab_size_(std::numeric_limits<int32_t>::max()) {
  if (limits_.max_tokens < 1 || limits_.max_outputs < 1) refuse("A step has at least one row.");
  blocks_.reserve(static_cast<size_t>(limits_.max_tokens / kRowStep + 1));
  thread_nanoseconds_.resize(static_cast<size_t>(device_->pool().num_threads()));
}

Buffer Program::add_buffer(Rows rows, int64_t width, DType dtype) {
  if (width < 1 || width > (int64_t{1} << 30)) refuse("A buffer is 1 to 2^30 elements wide.");
  if (dtype == DType::kInt8 || dtype == DType::kInt16) {
    refuse("int8 and int16 are dtypes of keys and values, not of buffers.");
  }
  Buffer buffer;
  buffer.stride = row_stride(width, dtype);
  buffer.width = static_cast<int32_t>(width);
  buffer.dtype = dtype;
  buffer.rows = rows;
  // Mappings start on pages; different first lines keep equal rows of two buffers in different
  // cache sets.
  const int64_t colour = static_cast<int64_t>(arena_.size() * 5 % 64) * kAlignment;
  const int64_t bytes = (int64_t{max_rows(rows)} + kSlackRows) * buffer.stride;
  arena_.emplace_back(static_cast<size_t>(colour + bytes));
  arena_bytes_ += bytes;
  buffer.data = arena_.back().data() + colour;
  return buffer;
}

void Program::add(OpArgs args, std::vector<std::shared_ptr<const void>> owners) {
  if (const auto* embed = std::get_if<EmbedArgs>(&args)) {
    vocab_size_ = std::min(vocab_size_, embed->table.num_outputs);
    const bool is_same = embedding_width_ == 0 || embedding_width_ == embed->out.width;
    embedding_width_ = is_same ? embed->out.width : -1;
  }
  if (const auto* positions = std::get_if<AddPositionsArgs>(&args)) {
    num_positions_ = std::min(num_positions_, positions->num_positions);
  }
  if (const auto* adapt = std::get_if<AdaptArgs>(&args)) {
    const int32_t capacity = adapt->adapters->capacity;
    num_adapters_ = num_adapters_ == 0 ? capacity : std::min(num_adapters_, capacity);
  }
  uses_cache_ = uses_cache_ || std::holds_alternative<RotateAndStoreArgs>(args) ||
                std::holds_alternative<AttentionArgs>(args);
  ops_.push_back({std::move(args), std::move(owners)});
}

void Program::check_sequences(const StepArrays& arrays) const {
  const KVLayout& layout = cache_->layout();
  const int64_t num_sequences = arrays.key_starts.size;
  const int32_t* starts = arrays.query_starts.data;
  if (starts[0] != 0 || starts[num_sequences] != arrays.token_ids.size) {
    refuse("query_starts runs from 0 to the number of tokens.");
  }
  if (arrays.block_tables.size() != layout.num_blocks.size())
    refuse("One block table per KV group is needed.");
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t count = int64_t{starts[s + 1]} - starts[s];
    const int64_t key_start = arrays.key_starts.data[s], slot = arrays.slots.data[s];
    if (count < 0) refuse("query_starts must not fall.");
    if (key_start < 0) refuse("key_starts must not be negative.");
    if (count == 0) continue;
    const int64_t blocks = (key_start + count + layout.block_size - 1) / layout.block_size;
    const int64_t first_written = key_start / layout.block_size;
    for (size_t group = 0; group < arrays.block_tables.size(); ++group) {
      const StepArrays::Table& table = arrays.block_tables[group];
      if (slot < 0 || slot >= table.rows) refuse("slots names a row that the block table lacks.");
      if (blocks > table.width) refuse("A sequence is longer than its block table.");
      const int32_t* row = table.data + slot * table.width;
      for (int64_t b = 0; b < blocks; ++b) {
        if (row[b] >= layout.num_blocks[group])
          refuse("A block table names a block that does not exist.");
        if (b >= first_written && row[b] < 0)
          refuse("A sequence writes to a block that was given back.");
      }
    }
  }
}

StepInputs Program::check(const StepArrays& arrays) {
  const int64_t num_tokens = arrays.token_ids.size, num_outputs = arrays.output_rows.size;
  if (num_tokens > limits_.max_tokens) refuse("The step has more tokens than the program's limit.");
  if (num_outputs > limits_.max_outputs)
    refuse("The step has more output rows than the program's limit.");
  if (arrays.positions.size != num_tokens) refuse("positions has one entry per token.");
  if (arrays.slots.size != arrays.key_starts.size ||
      arrays.query_starts.size != arrays.key_starts.size + 1) {
    refuse("query_starts has one entry more than key_starts and slots.");
  }
  if (arrays.embeddings.rows > 0 && arrays.embeddings.width != embedding_width_)
    refuse("embeddings are not as wide as the table's rows.");
  check_range(arrays.token_ids, vocab_size_, "token_ids", -arrays.embeddings.rows);
  check_range(arrays.output_rows, num_tokens, "output_rows");
  check_range(arrays.positions, num_positions_, "positions");
  if (arrays.adapters.data != nullptr) {
    if (num_adapters_ == 0) refuse("adapters are not part of this program.");
    if (arrays.adapters.size != num_tokens) refuse("adapters has one entry per token.");
    check_range(arrays.adapters, int64_t{num_adapters_} + 1, "adapters");
  }
  if (uses_cache_) check_sequences(arrays);
  tables_.clear();
  table_widths_.clear();
  for (const StepArrays::Table& table : arrays.block_tables) {
    tables_.push_back(table.data);
    table_widths_.push_back(table.width);
  }
  StepInputs inputs;
  inputs.num_tokens = static_cast<int32_t>(num_tokens);
  inputs.num_outputs = static_cast<int32_t>(num_outputs);
  inputs.num_sequences = static_cast<int32_t>(arrays.key_starts.size);
  inputs.token_ids = arrays.token_ids.data;
  inputs.embeddings = arrays.embeddings.data;
  inputs.positions = arrays.positions.data;
  inputs.query_starts = arrays.query_starts.data;
  inputs.key_starts = arrays.key_starts.data;
  inputs.slots = arrays.slots.data;
  inputs.output_rows = arrays.output_rows.data;
  inputs.adapters = arrays.adapters.data;
  inputs.block_tables = tables_.data();
  inputs.table_widths = table_widths_.data();
  inputs.num_groups = static_cast<int32_t>(tables_.size());
  return inputs;
}

size_t Program::end_of_row_ops(size_t first) const {
  size_t last = first;
  while (last < ops_.size() && is_row_op(ops_[last].args)) ++last;
  return last;
}

void Program::run_whole(const Op& op, const StepInputs& inputs) {
  OpContext context(inputs, *cache_, device_->pool(), device_->scratch());
  if (!is_profiling_) return call(device_->kernels(), op.args, context);
  const Stopwatch watch;
  call(device_->kernels(), op.args, context);
  OpTime& time = times_[op.args.index()];
  ++time.calls;
  time.nanoseconds += watch.nanoseconds();
}

void Program::run_block(size_t first, size_t last, const StepInputs& inputs, TokenRange tokens,
                        int thread) {
  OpContext context(inputs, *cache_, device_->no_pool(), device_->scratch(thread), tokens);
  for (size_t i = first; i < last; ++i) {
    const OpArgs args = from_token(ops_[i].args, tokens.first);
    if (!is_profiling_) {
      call(device_->kernels(), args, context);
      continue;
    }
    const Stopwatch watch;
    call(device_->kernels(), args, context);
    thread_nanoseconds_[static_cast<size_t>(thread)][args.index()] += watch.nanoseconds();
  }
}

// Ops [first, last) for all tokens. A profile shares out the time that passed as the threads spent
// theirs.
void Program::run_blocks(size_t first, size_t last, const StepInputs& inputs) {
  for (auto& spent : thread_nanoseconds_) spent = {};
  const Stopwatch watch;
  FirstError error;
  device_->pool().parallel_for(static_cast<int64_t>(blocks_.size()), [&](int64_t item, int thread) {
    error.guard(
        [&] { run_block(first, last, inputs, blocks_[static_cast<size_t>(item)], thread); });
  });
  error.rethrow();
  if (!is_profiling_) return;
  const auto passed = static_cast<double>(watch.nanoseconds());
  std::array<int64_t, kOpNames.size()> spent{};
  for (const auto& of_thread : thread_nanoseconds_) {
    for (size_t i = 0; i < spent.size(); ++i) spent[i] += of_thread[i];
  }
  const auto total = static_cast<double>(std::accumulate(spent.begin(), spent.end(), int64_t{1}));
  for (size_t i = first; i < last; ++i) ++times_[ops_[i].args.index()].calls;
  for (size_t i = 0; i < spent.size(); ++i) {
    times_[i].nanoseconds += static_cast<int64_t>(passed * static_cast<double>(spent[i]) / total);
  }
}

void Program::run(const StepArrays& arrays) {
  const StepInputs inputs = check(arrays);
  blocks_.clear();
  if (uses_row_blocks_) cut_rows(inputs.num_tokens, device_->pool().num_threads(), blocks_);
  for (size_t i = 0; i < ops_.size();) {
    const size_t end = blocks_.empty() ? i : end_of_row_ops(i);
    if (end > i) {
      run_blocks(i, end, inputs);
      i = end;
    } else {
      run_whole(ops_[i++], inputs);
    }
  }
}

void Program::clear() {
  for (Mapping& buffer : arena_) buffer.clear();
}

void Program::write(const Buffer& buffer, const float* rows, int64_t num_rows, int64_t width) {
  if (width != buffer.width || num_rows > max_rows(buffer.rows))
    refuse("The rows do not fit the buffer.");
  // Through the kernel that converts, one row at a time, so that every dtype is what an op would
  // have made.
  Mapping line(static_cast<size_t>((1 + kSlackRows) * row_stride(width, DType::kF32)));
  StepInputs inputs;
  inputs.num_tokens = inputs.num_outputs = 1;
  OpContext context(inputs, *cache_, device_->pool(), device_->scratch());
  ConvertArgs args{buffer, buffer};
  args.x.data = line.data();
  args.x.stride = row_stride(width, DType::kF32);
  args.x.dtype = DType::kF32;
  for (int64_t t = 0; t < num_rows; ++t) {
    std::memcpy(line.data(), rows + t * width, static_cast<size_t>(width) * sizeof(float));
    args.out.data = buffer.data + t * buffer.stride;
    device_->kernels().convert(args, context);
  }
}

void Program::set_profiling(bool enabled) {
  is_profiling_ = enabled;
  times_ = {};
}

}  // namespace headrace
