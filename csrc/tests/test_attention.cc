// Attention under the sanitizers: odd head sizes, every dtype, windows, and contexts long enough
// that chunks are shared out to threads.
#include <cmath>
#include <memory>
#include <vector>

#include "program/program.h"
#include "tests/check.h"

namespace headrace::tests {
namespace {

struct Shape {
  int num_heads, num_kv_heads, head_size;
  DType kv_dtype, out_dtype;
  int window;
  float soft_cap;
};

constexpr Shape kShapes[] = {
    {3, 1, 64, DType::kF16, DType::kQ8, 0, 0.0f},
    {4, 4, 20, DType::kBF16, DType::kQ8, 0, 30.0f},
    {7, 1, 96, DType::kF32, DType::kF32, 600, 0.0f},
    {14, 2, 24, DType::kF16, DType::kBF16, 5, 0.0f},
    {6, 2, 21, DType::kBF16, DType::kF32, 33, 0.0f},
    {9, 3, 64, DType::kInt8, DType::kQ8, 0, 0.0f},
    {6, 2, 21, DType::kInt8, DType::kF32, 33, 9.0f},
    {9, 3, 64, DType::kInt16, DType::kQ8, 0, 0.0f},
    {6, 2, 21, DType::kInt16, DType::kF32, 33, 9.0f},
};

// One sequence of `past` keys that runs `count` more tokens; the last block is full to its end, so
// that a read past the cache would be one past its memory.
struct Run {
  int count, past;
};

constexpr Run kRuns[] = {{1, 1599}, {3, 1597}, {80, 0}};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::byte> attend(Isa isa, int threads, const Shape& shape, const Run& run) {
  constexpr int kBlock = 16;
  const int num_blocks = (run.past + run.count + kBlock - 1) / kBlock;
  const auto device = std::make_shared<Device>(isa, threads);
  const auto cache = std::make_shared<KVCache>(
      KVLayout{1, shape.num_kv_heads, shape.head_size, kBlock, shape.kv_dtype, {0}, {num_blocks}});
  for (int b = 0; b < num_blocks; ++b) {
    cache->import_block(0, b, random_floats(cache->export_size(0), 100u + b).data());
  }
  Program program(device, cache, {run.count, 1});
  const int width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size;
  const Buffer qkv = program.add_buffer(Rows::kTokens, width, DType::kF32);
  const Buffer out =
      program.add_buffer(Rows::kTokens, shape.num_heads * shape.head_size, shape.out_dtype);
  program.add(AttentionArgs{qkv, out, 0, shape.num_heads, 0.2f, shape.soft_cap, shape.window, true,
                            Buffer{}},
              {});
  program.write(qkv, random_floats(int64_t{run.count} * width, 7).data(), run.count, width);
  std::vector<int32_t> tokens(static_cast<size_t>(run.count), 0), table;
  for (int b = 0; b < num_blocks; ++b) table.push_back(b);
  const int32_t starts[] = {0, run.count}, key_start[] = {run.past}, slot[] = {0};
  StepArrays arrays;
  arrays.token_ids = arrays.positions = {tokens.data(), run.count};
  arrays.query_starts = {starts, 2};
  arrays.key_starts = {key_start, 1};
  arrays.slots = arrays.output_rows = {slot, 1};
  arrays.block_tables = {{table.data(), 1, num_blocks}};
  program.run(arrays);
  return {out.data, out.data + run.count * out.stride};
}

}  // namespace

void test_attention() {
  const CpuFeatures cpu = detect_cpu();
  for (const Isa isa : kIsas) {
    if (find_kernels(isa, cpu) == nullptr) continue;
    for (const Shape& shape : kShapes) {
      for (const Run& run : kRuns) {
        CHECK(attend(isa, 1, shape, run) == attend(isa, 3, shape, run),
              "threads changed a bit: D %d, %d tokens", shape.head_size, run.count);
      }
    }
  }
}

}  // namespace headrace::tests
