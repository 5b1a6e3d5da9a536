// Linears on emulated tile registers (per_isa/tiles.cc) against those of the same instruction set:
// every bit.
#include <bit>
#include <random>

#include "base/isa.h"
#include "gemm/panels.h"
#include "tests/check.h"
#include "tests/weights.h"

namespace headrace {

namespace generic {
void linear_on_emulated_tiles(const LinearArgs&, OpContext&);
}
namespace avx2 {
void linear_on_emulated_tiles(const LinearArgs&, OpContext&);
}
namespace avx512 {
void linear_on_emulated_tiles(const LinearArgs&, OpContext&);
}
namespace neon {
void linear_on_emulated_tiles(const LinearArgs&, OpContext&);
}

namespace tests {
namespace {

using Linear = void (*)(const LinearArgs&, OpContext&);

Linear emulated_linear(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::linear_on_emulated_tiles;
    case Isa::kAvx512:
      return avx512::linear_on_emulated_tiles;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return neon::linear_on_emulated_tiles;
#endif
    default:
      return generic::linear_on_emulated_tiles;
  }
}

// Rows in memory of their own, 64-byte aligned.
struct Matrix {
  Matrix(int num_rows, int64_t row_bytes, int32_t width, DType dtype)
      : memory(static_cast<size_t>(num_rows * round_up(row_bytes, kAlignment))),
        buffer{memory.data(), round_up(row_bytes, kAlignment), width, dtype, Rows::kTokens} {}
  Mapping memory;
  Buffer buffer;
};

void set_codes(Q8Group& group, int count, std::mt19937& random, bool is_extreme) {
  std::uniform_real_distribution<float> uniform(0.0f, 0.01f);
  group = {};
  for (int i = 0; i < count; ++i) {
    const auto code = static_cast<int>(random() % 255) - 127;
    group.codes[i] = static_cast<int8_t>(is_extreme ? (code < 0 ? -127 : 127) : code);
    group.half_sums[i / 16] += group.codes[i];
  }
  group.scale = uniform(random);
  group.scaled_sum = group.scale * static_cast<float>(group.half_sums[0] + group.half_sums[1]);
}

Matrix make_rows(int num_rows, int64_t num_inputs, bool is_extreme) {
  const int64_t groups = (num_inputs + kGroup - 1) / kGroup;
  Matrix x(num_rows, groups * static_cast<int64_t>(sizeof(Q8Group)),
           static_cast<int32_t>(num_inputs), DType::kQ8);
  std::mt19937 random(static_cast<unsigned>(num_rows));
  for (int t = 0; t < num_rows; ++t) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t rest = num_inputs - g * kGroup;
      set_codes(x.buffer.row<Q8Group>(t)[g], static_cast<int>(rest < kGroup ? rest : kGroup),
                random, is_extreme);
    }
  }
  return x;
}

// What both write to.
Matrix make_output(int num_rows, int64_t num_outputs) {
  Matrix out(num_rows, num_outputs * 4, static_cast<int32_t>(num_outputs), DType::kF32);
  for (int t = 0; t < num_rows; ++t) {
    for (int64_t n = 0; n < num_outputs; ++n) out.buffer.row(t)[n] = static_cast<float>(t - n);
  }
  return out;
}

void check_bits(Isa isa, ThreadPool& pool, const TestWeight& weight, int num_rows,
                bool is_extreme) {
  const int64_t num_outputs = weight.packed.num_outputs;
  const Matrix x = make_rows(num_rows, weight.packed.num_inputs, is_extreme);
  const Matrix expected = make_output(num_rows, num_outputs);
  const Matrix found = make_output(num_rows, num_outputs);
  std::vector<float> bias(static_cast<size_t>(num_outputs), 0.25f);
  const KVCache cache(KVLayout{1, 1, 16, 16, DType::kF32, {0}, {1}});
  StepInputs inputs;
  inputs.num_tokens = num_rows;
  Mapping scratch;
  OpContext context(inputs, cache, pool, scratch);
  const bool accumulate = num_rows % 2 == 0;
  const float* added = num_rows % 3 == 0 ? bias.data() : nullptr;
  LinearArgs args{x.buffer, weight.packed, expected.buffer, added, accumulate, 0, 1.5f};
  find_kernels(isa, detect_cpu())->linear(args, context);
  args.out = found.buffer;
  emulated_linear(isa)(args, context);
  for (int t = 0; t < num_rows; ++t) {
    for (int64_t n = 0; n < num_outputs; ++n) {
      const float a = expected.buffer.row(t)[n], b = found.buffer.row(t)[n];
      CHECK(std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b),
            "format %d, %d rows: row %d output %lld: %g for %g",
            static_cast<int>(weight.packed.format), num_rows, t, static_cast<long long>(n),
            static_cast<double>(b), static_cast<double>(a));
    }
  }
}

}  // namespace

void test_tiles() {
  ThreadPool pool(3);
  for (const Isa isa : kIsas) {
    if (isa == Isa::kAmx || find_kernels(isa, detect_cpu()) == nullptr) continue;
    for (const WeightFormat format :
         {WeightFormat::kW4G32, WeightFormat::kW8G32, WeightFormat::kW8G16}) {
      for (const bool has_mins : {false, true}) {
        const TestWeight odd = make_weight(format, has_mins, 53, 77, 2);
        for (const int num_rows : {1, 15, 16, 17, 24, 45}) {
          check_bits(isa, pool, odd, num_rows, false);
        }
        check_bits(isa, pool, make_weight(format, has_mins, 1, 1, 3), 16, false);
        const TestWeight large = make_weight(format, has_mins, 400, 576, 4);
        check_bits(isa, pool, large, 36, false);
        check_bits(isa, pool, large, 16, true);
      }
    }
  }
}

}  // namespace tests
}  // namespace headrace
