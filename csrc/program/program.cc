#include "program/program.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "gemm/panels.h"

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

void check_range(const StepArrays::View& view, int64_t limit, const char* name) {
  for (int64_t i = 0; i < view.size; ++i) {
    if (view.data[i] < 0 || view.data[i] >= limit) {
      refuse(std::string(name) + " holds " + std::to_string(view.data[i]) + ", outside 0.." +
             std::to_string(limit - 1) + ".");
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
}

Buffer Program::add_buffer(Rows rows, int64_t width, DType dtype) {
  if (width < 1 || width > (int64_t{1} << 30)) refuse("A buffer is 1 to 2^30 elements wide.");
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
  check_range(arrays.token_ids, vocab_size_, "token_ids");
  check_range(arrays.output_rows, num_tokens, "output_rows");
  check_range(arrays.positions, std::numeric_limits<int32_t>::max(), "positions");
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
  inputs.positions = arrays.positions.data;
  inputs.query_starts = arrays.query_starts.data;
  inputs.key_starts = arrays.key_starts.data;
  inputs.slots = arrays.slots.data;
  inputs.output_rows = arrays.output_rows.data;
  inputs.block_tables = tables_.data();
  inputs.table_widths = table_widths_.data();
  inputs.num_groups = static_cast<int32_t>(tables_.size());
  return inputs;
}

void Program::execute(const Op& op, OpContext& context) const {
  const KernelTable& kernels = device_->kernels();
  struct Call {
    const KernelTable& table;
    OpContext& context;
    void operator()(const EmbedArgs& args) const { table.embed(args, context); }
    void operator()(const RmsNormArgs& args) const { table.rms_norm(args, context); }
    void operator()(const RmsNormAddArgs& args) const { table.rms_norm_add(args, context); }
    void operator()(const ConvertArgs& args) const { table.convert(args, context); }
    void operator()(const GatedActivationArgs& args) const {
      table.gated_activation(args, context);
    }
    void operator()(const GatherOutputsArgs& args) const { table.gather_outputs(args, context); }
    void operator()(const SoftCapArgs& args) const { table.soft_cap(args, context); }
    void operator()(const LinearArgs& args) const { table.linear(args, context); }
    void operator()(const RopeTableArgs& args) const { table.rope_table(args, context); }
    void operator()(const RotateAndStoreArgs& args) const { table.rotate_and_store(args, context); }
    void operator()(const AttentionArgs& args) const { table.attention(args, context); }
  };
  std::visit(Call{kernels, context}, op.args);
}

void Program::run(const StepArrays& arrays) {
  const StepInputs inputs = check(arrays);
  OpContext context(inputs, *cache_, device_->pool(), device_->scratch());
  if (!is_profiling_) {
    for (const Op& op : ops_) execute(op, context);
    return;
  }
  for (const Op& op : ops_) {
    const auto start = std::chrono::steady_clock::now();
    execute(op, context);
    OpTime& time = times_[op.args.index()];
    ++time.calls;
    time.nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  }
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
