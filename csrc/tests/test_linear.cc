#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "gemm/panels.h"
#include "program/program.h"
#include "tests/check.h"
#include "tests/rows.h"
#include "tests/weights.h"

namespace headrace::tests {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kW4G32, WeightFormat::kW8G32,
                                     WeightFormat::kW8G16, WeightFormat::kBF16,
                                     WeightFormat::kF16,   WeightFormat::kF32};

std::shared_ptr<KVCache> small_cache() {
  return std::make_shared<KVCache>(KVLayout{1, 1, 16, 16, DType::kF32, {0}, {4}});
}

// A step of `count` tokens for programs without attention.
struct PlainStep {
  explicit PlainStep(int count) : ids(static_cast<size_t>(count), 0), starts{0, count}, zero{0} {
    arrays.token_ids = arrays.positions = {ids.data(), count};
    arrays.query_starts = {starts, 2};
    arrays.key_starts = arrays.slots = {zero, 1};
    arrays.output_rows = {zero, 1};
  }
  std::vector<int32_t> ids;
  int32_t starts[2];
  int32_t zero[1];
  StepArrays arrays;
};

void check_product(const std::shared_ptr<Device>& device, const TestWeight& weight, int num_rows) {
  Program program(device, small_cache(), {num_rows, 1});
  const int64_t num_inputs = weight.packed.num_inputs, num_outputs = weight.packed.num_outputs;
  const Buffer x =
      program.add_buffer(Rows::kTokens, num_inputs, device->operand_dtype(weight.packed.format));
  const Buffer out = program.add_buffer(Rows::kTokens, num_outputs, DType::kF32);
  program.add(LinearArgs{x, weight.packed, out, nullptr, false, 0, 1.0f}, {});
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(num_rows * num_inputs));
  for (float& value : rows) value = normal(random);
  program.write(x, rows.data(), num_rows, num_inputs);
  PlainStep step(num_rows);
  program.run(step.arrays);
  const std::vector<double> operand = read_rows(x, num_rows);
  for (int t = 0; t < num_rows; ++t) {
    for (int64_t n = 0; n < num_outputs; ++n) {
      double sum = 0.0, magnitude = 0.0;
      for (int64_t k = 0; k < num_inputs; ++k) {
        const double product = operand[static_cast<size_t>(t * num_inputs + k)] *
                               weight.values[static_cast<size_t>(n * num_inputs + k)];
        sum += product;
        magnitude +=
            std::fabs(product) + std::fabs(operand[static_cast<size_t>(t * num_inputs + k)]) * 0.5;
      }
      const double error = std::fabs(out.row(t)[n] - sum);
      CHECK(error <= static_cast<double>(num_inputs + 8) * 0x1p-24 * magnitude,
            "row %d output %lld: %g for %g", t, static_cast<long long>(n), out.row(t)[n], sum);
    }
  }
}

void check_embed(const std::shared_ptr<Device>& device, const TestWeight& weight) {
  const int count = 20;
  Program program(device, small_cache(), {count, 1});
  const Buffer out = program.add_buffer(Rows::kTokens, weight.packed.num_inputs, DType::kF32);
  program.add(EmbedArgs{weight.packed, out, 2.0f}, {});
  PlainStep step(count);
  for (int t = 0; t < count; ++t) {
    step.ids[static_cast<size_t>(t)] = static_cast<int32_t>(t * 7 % weight.packed.num_outputs);
  }
  program.run(step.arrays);
  for (int t = 0; t < count; ++t) {
    const auto first =
        static_cast<size_t>(step.ids[static_cast<size_t>(t)] * weight.packed.num_inputs);
    for (int64_t k = 0; k < weight.packed.num_inputs; ++k) {
      const double expected = 2.0 * weight.values[first + static_cast<size_t>(k)];
      CHECK(std::fabs(out.row(t)[k] - expected) <= 1e-6 * (std::fabs(expected) + 1.0), "%g for %g",
            out.row(t)[k], expected);
    }
  }
}

}  // namespace

void test_linear() {
  const CpuFeatures cpu = detect_cpu();
  for (const Isa isa : kIsas) {
    if (find_kernels(isa, cpu) == nullptr) continue;
    const auto device = std::make_shared<Device>(isa, 3);
    for (const WeightFormat format : kFormats) {
      for (const bool has_mins : {false, true}) {
        if (has_mins && !is_quantized(format)) continue;
        check_embed(device, make_weight(format, has_mins, 37, 45, 1));
        const TestWeight weight = make_weight(format, has_mins, 53, 77, 2);
        for (const int num_rows : {1, 2, 3, 5, 7, 13, 40}) check_product(device, weight, num_rows);
        check_product(device, make_weight(format, has_mins, 1, 1, 3), 4);
        check_product(device, make_weight(format, has_mins, 64, 320, 4), 25);
      }
    }
  }
}

}  // namespace headrace::tests
