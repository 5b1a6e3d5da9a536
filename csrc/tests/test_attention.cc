// Attention and what stores its keys and values: odd head sizes, every dtype, windows, and contexts
// long enough that chunks are shared out to threads. Against plain arithmetic in double precision.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "program/program.h"
#include "tests/check.h"
#include "tests/rows.h"

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
constexpr float kScale = 0.2f;

// One sequence of `past` keys that runs `count` more tokens; the last block is full to its end, so
// that a read past the cache would be one past its memory.
struct Run {
  int count, past;
};

constexpr Run kRuns[] = {{1, 1599}, {3, 1597}, {80, 0}};
constexpr int kBlock = 16;

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

std::shared_ptr<KVCache> make_cache(const Shape& shape, int num_blocks) {
  return std::make_shared<KVCache>(
      KVLayout{1, shape.num_kv_heads, shape.head_size, kBlock, shape.kv_dtype, {0}, {num_blocks}});
}

int qkv_width(const Shape& shape) {
  return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size;
}

// One sequence of `count` tokens after `past` keys, in blocks 0, 1, ...
struct OneSequence {
  OneSequence(int count, int past) : tokens(static_cast<size_t>(count), 0), starts{0, count} {
    for (int b = 0; b * kBlock < past + count; ++b) table.push_back(b);
    past_keys[0] = past;
    arrays.token_ids = arrays.positions = {tokens.data(), count};
    arrays.query_starts = {starts, 2};
    arrays.key_starts = {past_keys, 1};
    arrays.slots = arrays.output_rows = {zero, 1};
    arrays.block_tables = {{table.data(), 1, static_cast<int64_t>(table.size())}};
  }
  OneSequence(const OneSequence&) = delete;
  OneSequence& operator=(const OneSequence&) = delete;
  std::vector<int32_t> tokens, table;
  int32_t starts[2], past_keys[1], zero[1] = {0};
  StepArrays arrays;
};

struct Attended {
  std::vector<std::byte> bytes;
  std::vector<double> values;  // [tokens, heads, D]
};

Attended attend(Isa isa, int threads, const Shape& shape, const Run& run,
                const std::shared_ptr<KVCache>& cache, const std::vector<float>& rows) {
  Program program(std::make_shared<Device>(isa, threads), cache, {run.count, 1});
  const Buffer qkv = program.add_buffer(Rows::kTokens, qkv_width(shape), DType::kF32);
  const Buffer out =
      program.add_buffer(Rows::kTokens, shape.num_heads * shape.head_size, shape.out_dtype);
  program.add(AttentionArgs{qkv, out, 0, shape.num_heads, kScale, shape.soft_cap, shape.window,
                            true, Buffer{}},
              {});
  program.write(qkv, rows.data(), run.count, qkv_width(shape));
  OneSequence step(run.count, run.past);
  program.run(step.arrays);
  return {{out.data, out.data + run.count * out.stride}, read_rows(out, run.count)};
}

// All blocks of the cache as stored: [2, G, keys, D], keys then values.
std::vector<float> stored(const KVCache& cache, int num_blocks) {
  const KVLayout& layout = cache.layout();
  const int64_t part = int64_t{kBlock} * layout.head_size;
  std::vector<float> all(static_cast<size_t>(cache.export_size(0) * num_blocks));
  std::vector<float> block(static_cast<size_t>(cache.export_size(0)));
  for (int b = 0; b < num_blocks; ++b) {
    cache.export_block(0, b, block.data());
    for (int64_t head = 0; head < 2 * layout.num_kv_heads; ++head) {
      std::copy_n(block.data() + head * part, part, all.data() + (head * num_blocks + b) * part);
    }
  }
  return all;
}

// What one query makes of keys [begin, end); all [D] and [keys, D].
std::vector<double> attend_plainly(const Shape& shape, const float* query, const float* keys,
                                   const float* values, int begin, int end) {
  const int size = shape.head_size;
  std::vector<double> scores, out(static_cast<size_t>(size), 0.0);
  for (int k = begin; k < end; ++k) {
    double score = 0.0;
    for (int d = 0; d < size; ++d) score += double{query[d]} * keys[k * size + d];
    score *= kScale;
    if (shape.soft_cap > 0.0f) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
    scores.push_back(score);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - top);
  for (int k = begin; k < end; ++k) {
    const double weight = std::exp(scores[static_cast<size_t>(k - begin)] - top) / sum;
    for (int d = 0; d < size; ++d) out[static_cast<size_t>(d)] += weight * values[k * size + d];
  }
  return out;
}

// As Attended::values.
std::vector<double> expected(const Shape& shape, const Run& run, const KVCache& cache,
                             const std::vector<float>& rows) {
  const int num_keys = run.past + run.count, size = shape.head_size;
  const std::vector<float> kv = stored(cache, num_keys / kBlock);
  std::vector<double> out;
  for (int t = 0; t < run.count; ++t) {
    const int end = run.past + t + 1;
    const int begin = shape.window > 0 ? std::max(0, end - shape.window) : 0;
    for (int h = 0; h < shape.num_heads; ++h) {
      const int group = h / (shape.num_heads / shape.num_kv_heads);
      const float* keys = kv.data() + int64_t{group} * num_keys * size;
      const float* values = keys + int64_t{shape.num_kv_heads} * num_keys * size;
      const float* query = rows.data() + int64_t{t} * qkv_width(shape) + h * size;
      const auto row = attend_plainly(shape, query, keys, values, begin, end);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

// How far an output may be off. Values are normal, so about 4 at most; what is rounded beside them
// are queries (8 bits of int8, of bf16 where its products are, 15 of int16) and weights, whose
// faults average out over keys, and the output. A third of this or less is seen; a wrong key or
// lane shows as 0.1 or more.
double tolerance(const Shape& shape, double output) {
  double inner = 1e-4;
  if (shape.kv_dtype == DType::kBF16 || shape.kv_dtype == DType::kInt8) inner = 0.02;
  if (shape.kv_dtype == DType::kInt16) inner = 5e-4;
  if (shape.out_dtype == DType::kQ8) return inner + 4.0 / 254.0;
  if (shape.out_dtype == DType::kBF16) return inner + std::fabs(output) * 0x1p-8;
  return inner;
}

void check_shape(const Shape& shape, const Run& run) {
  const CpuFeatures cpu = detect_cpu();
  const int num_blocks = (run.past + run.count) / kBlock;
  const auto cache = make_cache(shape, num_blocks);
  for (int b = 0; b < num_blocks; ++b) {
    cache->import_block(0, b, random_floats(cache->export_size(0), 100u + b).data());
  }
  const std::vector<float> rows = random_floats(int64_t{run.count} * qkv_width(shape), 7);
  const std::vector<double> wanted = expected(shape, run, *cache, rows);
  for (const Isa isa : kIsas) {
    if (find_kernels(isa, cpu) == nullptr) continue;
    const Attended alone = attend(isa, 1, shape, run, cache, rows);
    CHECK(alone.bytes == attend(isa, 3, shape, run, cache, rows).bytes,
          "threads changed a bit: D %d, %d tokens", shape.head_size, run.count);
    for (size_t i = 0; i < wanted.size(); ++i) {
      CHECK(std::fabs(alone.values[i] - wanted[i]) <= tolerance(shape, wanted[i]),
            "set %d, KV %d, D %d, %d tokens, element %zu: %g for %g", static_cast<int>(isa),
            static_cast<int>(shape.kv_dtype), shape.head_size, run.count, i, alone.values[i],
            wanted[i]);
    }
  }
}

// Every set stores what KVCache::import_block does, to the bit. At position 0 nothing is rotated.
void check_store(const Shape& shape) {
  const CpuFeatures cpu = detect_cpu();
  constexpr int kCount = 2 * kBlock;
  const int width = qkv_width(shape), size = shape.head_size;
  const std::vector<float> rows = random_floats(int64_t{kCount} * width, 9);
  const std::vector<float> frequencies(static_cast<size_t>(size / 2), 1.0f);
  const auto copy = make_cache(shape, kCount / kBlock);
  std::vector<float> block(static_cast<size_t>(copy->export_size(0)));
  for (int b = 0; b < kCount / kBlock; ++b) {
    for (int head = 0; head < 2 * shape.num_kv_heads; ++head) {
      for (int i = 0; i < kBlock; ++i) {
        std::copy_n(rows.data() + (b * kBlock + i) * width + (shape.num_heads + head) * size, size,
                    block.data() + (head * kBlock + i) * size);
      }
    }
    copy->import_block(0, b, block.data());
  }
  const std::vector<float> wanted = stored(*copy, kCount / kBlock);
  for (const Isa isa : kIsas) {
    if (find_kernels(isa, cpu) == nullptr) continue;
    const auto cache = make_cache(shape, kCount / kBlock);
    Program program(std::make_shared<Device>(isa, 2), cache, {kCount, 1});
    const Buffer qkv = program.add_buffer(Rows::kTokens, width, DType::kF32);
    const Buffer rope = program.add_buffer(Rows::kTokens, size / 2 * 2, DType::kF32);
    program.add(RopeTableArgs{rope, frequencies.data(), 1.0f}, {});
    program.add(RotateAndStoreArgs{qkv, rope, 0, shape.num_heads, nullptr, nullptr, 0.0f}, {});
    program.write(qkv, rows.data(), kCount, width);
    OneSequence step(kCount, 0);
    program.run(step.arrays);
    CHECK(stored(*cache, kCount / kBlock) == wanted, "set %d stores KV %d, D %d otherwise",
          static_cast<int>(isa), static_cast<int>(shape.kv_dtype), size);
  }
}

}  // namespace

void test_attention() {
  for (const Shape& shape : kShapes) {
    for (const Run& run : kRuns) check_shape(shape, run);
    check_store(shape);
  }
}

}  // namespace headrace::tests
