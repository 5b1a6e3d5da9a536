// A whole small model under the sanitizers: every op, several sequences, several threads.
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "program/program.h"
#include "tests/check.h"
#include "tests/weights.h"

namespace headrace::tests {
namespace {

constexpr int kHidden = 64, kHeads = 4, kKVHeads = 2, kHeadSize = 16, kBlock = 16, kVocab = 100;
constexpr int kMaxTokens = 256, kTableWidth = 16;
// Between the generic set and any other, of the largest logit: sums in another order decide which
// way a code rounds, and one set rounds operands to bf16. A third of this is seen.
constexpr float kSetTolerance = 0.05f;

struct Model {
  explicit Model(WeightFormat format)
      : table(make_weight(format, false, kVocab, kHidden, 1)),
        qkv(make_weight(format, false, (kHeads + 2 * kKVHeads) * kHeadSize, kHidden, 2)),
        o(make_weight(format, false, kHidden, kHeads * kHeadSize, 3)),
        gate_up(make_weight(format, false, 2 * 96, kHidden, 4)),
        down(make_weight(format, false, kHidden, 96, 5)),
        ones(kHidden, 1.0f),
        frequencies(kHeadSize / 2, 0.3f) {}
  TestWeight table, qkv, o, gate_up, down;
  std::vector<float> ones, frequencies;
};

// Records every op of the catalogue; returns the logits buffer.
Buffer record(Program& program, const Model& model, const Device& device) {
  const DType operand = device.operand_dtype(model.qkv.packed.format);
  const auto buffer = [&](Rows rows, int width, DType dtype) {
    return program.add_buffer(rows, width, dtype);
  };
  const Buffer hidden = buffer(Rows::kTokens, kHidden, DType::kF32);
  const Buffer normed = buffer(Rows::kTokens, kHidden, operand);
  const Buffer qkv = buffer(Rows::kTokens, (kHeads + 2 * kKVHeads) * kHeadSize, DType::kF32);
  const Buffer rope = buffer(Rows::kTokens, kHeadSize, DType::kF32);
  const Buffer attended = buffer(Rows::kTokens, kHeads * kHeadSize, operand);
  const Buffer mass = buffer(Rows::kTokens, kKVHeads * kTableWidth, DType::kF32);
  const Buffer projected = buffer(Rows::kTokens, kHidden, DType::kF32);
  const Buffer gate_up = buffer(Rows::kTokens, 2 * 96, DType::kF32);
  const Buffer activated = buffer(Rows::kTokens, 96, operand);
  const Buffer last = buffer(Rows::kOutputs, kHidden, DType::kF32);
  const Buffer last_operand = buffer(Rows::kOutputs, kHidden, operand);
  const Buffer logits = buffer(Rows::kOutputs, kVocab, DType::kF32);
  const float* ones = model.ones.data();
  program.add(EmbedArgs{model.table.packed, hidden, 4.0f}, {});
  program.add(RopeTableArgs{rope, model.frequencies.data(), 1.0f}, {});
  for (int layer = 0; layer < 2; ++layer) {
    program.add(RmsNormArgs{hidden, ones, normed, 1e-5f}, {});
    program.add(LinearArgs{normed, model.qkv.packed, qkv, nullptr, false, 0, 1.0f}, {});
    program.add(RotateAndStoreArgs{qkv, rope, layer, kHeads, layer == 0 ? ones : nullptr,
                                   layer == 0 ? ones : nullptr, 1e-5f},
                {});
    program.add(AttentionArgs{qkv, attended, layer, kHeads, 0.25f, layer == 0 ? 30.0f : 0.0f,
                              layer == 0 ? 20 : 0, true, layer == 0 ? mass : Buffer{}},
                {});
    program.add(LinearArgs{attended, model.o.packed, projected, nullptr, false, 0, 1.0f}, {});
    program.add(RmsNormAddArgs{projected, ones, hidden, 1e-5f}, {});
    program.add(RmsNormArgs{hidden, ones, normed, 1e-5f}, {});
    program.add(LinearArgs{normed, model.gate_up.packed, gate_up, nullptr, false, 0, 1.0f}, {});
    program.add(GatedActivationArgs{gate_up, activated,
                                    layer == 0 ? Activation::kSilu : Activation::kGeluTanh},
                {});
    program.add(LinearArgs{activated, model.down.packed, hidden, nullptr, true, 0, 1.0f}, {});
  }
  program.add(GatherOutputsArgs{hidden, last}, {});
  program.add(ConvertArgs{last, last_operand}, {});
  program.add(LinearArgs{last_operand, model.table.packed, logits, nullptr, false, 0, 1.0f}, {});
  program.add(SoftCapArgs{logits, 20.0f}, {});
  return logits;
}

// Three sequences: a prompt, a decode row, and a chunk that continues.
struct Step {
  explicit Step(int chunk = 17) {
    const int counts[] = {30, 1, chunk}, key_starts[] = {0, 40, 25};
    for (int s = 0; s < 3; ++s) {
      for (int i = 0; i < counts[s]; ++i) {
        ids.push_back((s * 31 + i * 7) % kVocab);
        positions.push_back(key_starts[s] + i);
      }
      starts.push_back(static_cast<int32_t>(ids.size()));
      keys.push_back(key_starts[s]);
      slots.push_back(2 - s);
      outputs.push_back(starts.back() - 1);
    }
    for (int slot = 0; slot < 3; ++slot) {
      for (int b = 0; b < kTableWidth; ++b) table.push_back(b < 15 ? slot * 15 + b : -1);
    }
    table[1 * kTableWidth] = -1;  // a block that was given back
    arrays.token_ids = {ids.data(), static_cast<int64_t>(ids.size())};
    arrays.positions = {positions.data(), static_cast<int64_t>(positions.size())};
    arrays.query_starts = {starts.data(), static_cast<int64_t>(starts.size())};
    arrays.key_starts = {keys.data(), 3};
    arrays.slots = {slots.data(), 3};
    arrays.output_rows = {outputs.data(), 3};
    arrays.block_tables = {{table.data(), 3, kTableWidth}};
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  std::vector<int32_t> ids, positions, starts{0}, keys, slots, outputs, table;
  StepArrays arrays;
};

// How weights, and keys and values, are kept.
struct Formats {
  WeightFormat weights;
  DType kv;
};

std::vector<float> run_model(Isa isa, int threads, Formats formats, const Step& step,
                             bool uses_row_blocks) {
  const auto device = std::make_shared<Device>(isa, threads);
  const auto cache =
      std::make_shared<KVCache>(KVLayout{2, kKVHeads, kHeadSize, kBlock, formats.kv, {0, 0}, {45}});
  const Model model(formats.weights);
  Program program(device, cache, {kMaxTokens, 4});
  const Buffer logits = record(program, model, *device);
  program.set_row_blocks(uses_row_blocks);
  for (int i = 0; i < 2; ++i) program.run(step.arrays);
  std::vector<float> result;
  for (int r = 0; r < 3; ++r) result.insert(result.end(), logits.row(r), logits.row(r) + kVocab);
  for (const float value : result) CHECK(std::isfinite(value), "a logit is %g", value);
  return result;
}

void check_refusal(const char* what, const std::function<void(Step&)>& damage) {
  const auto device = std::make_shared<Device>(Isa::kGeneric, 1);
  const auto cache = std::make_shared<KVCache>(
      KVLayout{2, kKVHeads, kHeadSize, kBlock, DType::kF16, {0, 0}, {45}});
  const Model model(WeightFormat::kF32);
  Program program(device, cache, {kMaxTokens, 4});
  record(program, model, *device);
  Step step;
  damage(step);
  bool is_refused = false;
  try {
    program.run(step.arrays);
  } catch (const std::invalid_argument&) {
    is_refused = true;
  }
  CHECK(is_refused, "%s was accepted", what);
}

void check_refusals() {
  check_refusal("a token past the vocabulary", [](Step& step) { step.ids[3] = kVocab; });
  check_refusal("a negative token", [](Step& step) { step.ids[3] = -1; });
  check_refusal("a falling start", [](Step& step) { step.starts[1] = 47; });
  check_refusal("a start that is not zero", [](Step& step) { step.starts[0] = 1; });
  check_refusal("a slot past the table", [](Step& step) { step.slots[0] = 3; });
  check_refusal("a negative slot", [](Step& step) { step.slots[0] = -1; });
  check_refusal("a sequence past its table",
                [](Step& step) { step.keys[1] = kTableWidth * kBlock; });
  check_refusal("a negative key start", [](Step& step) { step.keys[1] = -1; });
  check_refusal("a block past the pool", [](Step& step) { step.table[0] = 45; });
  check_refusal("a write to a block given back",
                [](Step& step) { step.table[2 * kTableWidth] = -1; });
  check_refusal("an output row past the tokens", [](Step& step) { step.outputs[0] = 48; });
  check_refusal("no block table", [](Step& step) { step.arrays.block_tables.clear(); });
  check_refusal("too many output rows", [](Step& step) {
    step.outputs.assign(5, 0);
    step.arrays.output_rows = {step.outputs.data(), 5};
  });
}

}  // namespace

void test_program() {
  const CpuFeatures cpu = detect_cpu();
  for (const Formats formats :
       {Formats{WeightFormat::kW4G32, DType::kInt16}, Formats{WeightFormat::kW8G16, DType::kInt8},
        Formats{WeightFormat::kBF16, DType::kF16}}) {
    const Step few, many(211);
    const std::vector<float> plain = run_model(Isa::kGeneric, 1, formats, many, false);
    float largest = 0.0f;
    for (const float logit : plain) largest = std::fmax(largest, std::fabs(logit));
    for (const Isa isa : kIsas) {
      if (find_kernels(isa, cpu) == nullptr) continue;
      CHECK(run_model(isa, 1, formats, few, true) == run_model(isa, 4, formats, few, true),
            "threads changed a bit");
      const std::vector<float> expected = run_model(isa, 3, formats, many, false);
      CHECK(run_model(isa, 1, formats, many, true) == expected, "row blocks changed a bit");
      CHECK(run_model(isa, 2, formats, many, true) == expected, "threads and blocks changed a bit");
      for (size_t i = 0; i < plain.size(); ++i) {
        CHECK(std::fabs(expected[i] - plain[i]) <= kSetTolerance * largest,
              "set %d, KV %d, logit %zu: %g for %g", static_cast<int>(isa),
              static_cast<int>(formats.kv), i, expected[i], plain[i]);
      }
    }
  }
  check_refusals();
}

}  // namespace headrace::tests
