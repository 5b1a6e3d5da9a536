// Sampling under the sanitizers: rows that end inside a block or a Vec, every way to cut,
// penalties.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "program/device.h"
#include "tests/check.h"

namespace headrace::tests {
namespace {

constexpr int kRows = 8, kTop = 5, kHistory = 40;

// Arrays of exactly the sizes that the kernel may touch.
struct Batch {
  explicit Batch(int vocab_size) : logits(static_cast<size_t>(kRows) * vocab_size) {
    std::mt19937 generator(static_cast<uint32_t>(vocab_size));
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (float& logit : logits) logit = normal(generator);
    if (vocab_size > 1) logits[vocab_size] = std::numeric_limits<float>::quiet_NaN();  // row 1
    for (int r = 0; r < kRows; ++r) {
      bias_ids.push_back(r % vocab_size);
      bias_values.push_back(-0.5f);
      for (int i = 0; i < kHistory; ++i) history.push_back((r + i * i) % (vocab_size + 3) - 1);
    }
    allowed.assign(static_cast<size_t>(kRows) * ((vocab_size + 31) / 32), 0xfffffffeu);
    args.logits = logits.data();
    args.logits_stride = args.vocab_size = vocab_size;
    args.num_rows = kRows;
    args.temperature = temperature, args.top_p = top_p, args.min_p = min_p;
    args.presence_penalty = presence, args.frequency_penalty = frequency;
    args.repetition_penalty = repetition;
    args.typical_p = typical, args.top_n_sigma = sigma;
    args.xtc_probability = xtc_probability, args.xtc_threshold = xtc_threshold;
    args.top_k = top_k, args.seeds = seeds, args.output_positions = positions;
    args.num_logprobs = num_logprobs, args.slots = slots, args.post_sampling = post;
    args.history = history.data(), args.history_stride = kHistory;
    args.history_lengths = lengths, args.num_prompt = prompts;
    args.bias_starts = bias_starts, args.bias_ids = bias_ids.data();
    args.bias_values = bias_values.data();
    args.dry_multiplier = dry_multiplier, args.dry_base = dry_base;
    args.dry_allowed_length = dry_allowed, args.dry_window = dry_window, args.dry_sets = dry_sets;
    breakers.assign(2 * ((static_cast<size_t>(vocab_size) + 31) / 32), 0);
    breakers.back() = 1u;
    args.dry_breakers = breakers.data(), args.dry_breakers_stride = (vocab_size + 31) / 32;
    args.dry_words = dry_words, args.dry_words_stride = 5;
    if (vocab_size > 1) {
      args.allowed = allowed.data();
      args.allowed_stride = (vocab_size + 31) / 32;
    }
    args.token_ids = token_ids, args.is_finite = is_finite, args.logprobs = logprobs;
    args.ranks = ranks, args.top_ids = top_ids, args.top_logprobs = top_logprobs;
    args.num_top = kTop;
  }
  std::vector<float> logits, bias_values;
  std::vector<int32_t> history, bias_ids;
  std::vector<uint32_t> allowed, breakers;
  float temperature[kRows] = {0.0f, 1.0f, 1.0f, 0.7f, 1.0f, 1e-40f, 2.0f, 1.0f};
  float top_p[kRows] = {1.0f, 1.0f, 1.0f, 0.9f, 0.5f, 0.3f, 1.0f, 0.9999f};
  float min_p[kRows] = {0.0f, 0.0f, 0.0f, 0.0f, 0.1f, 0.0f, 0.05f, 0.0f};
  float presence[kRows] = {0.0f, 0.5f, 0.5f}, frequency[kRows] = {0.0f, 0.0f, 0.1f};
  float repetition[kRows] = {1.0f, 1.0f, 1.2f, 1.0f, 1.0f, 1.0f, 1.0f, 0.9f};
  float typical[kRows] = {1.0f, 1.0f, 0.5f, 1.0f, 1.0f, 1.0f, 0.9f, 0.2f};
  float sigma[kRows] = {0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 0.5f, 0.0f, 2.0f};
  float xtc_probability[kRows] = {1.0f, 1.0f, 0.5f, 0.0f, 1.0f, 1.0f, 1.0f, 0.0f};
  float xtc_threshold[kRows] = {0.1f, 0.1f, 0.05f, 0.1f, 0.2f, 0.0f, 0.01f, 0.1f};
  float dry_multiplier[kRows] = {1.0f, 0.0f, 0.5f, 1.0f, 1.0f, 1.0f, 0.0f, 2.0f};
  float dry_base[kRows] = {1.5f, 0.0f, 1.0f, 1.5f, 1.5f, 1.5f, 0.0f, 100.0f};
  int32_t dry_allowed[kRows] = {1, 0, 1, 1, 1, 1, 0, 2};
  int32_t dry_window[kRows] = {40, 0, 7, 40, 40, 0, 0, 1 << 30};
  int32_t dry_sets[kRows] = {0, 0, 1, 0, 0, 1, 0, 0};
  int32_t dry_words[10] = {2, 0, 1, 0, 0, 4, 3, 2, 1, 0};
  int32_t top_k[kRows] = {0, 0, 0, 0, 3, 0, 1000000, 0};
  uint64_t seeds[kRows] = {1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}};
  int64_t positions[kRows] = {0, 1, 2, 3, 4, 5, 6, 1 << 20};
  int32_t num_logprobs[kRows] = {5, 5, 0, -1, 1, 5, -1, 2};
  bool post[kRows] = {true, false, true, false, true, true, false, true};
  int32_t slots[kRows] = {7, 6, 5, 4, 3, 2, 1, 0};
  int32_t lengths[kRows] = {40, 40, 40, 0, 1, 2, 3, 40},
          prompts[kRows] = {40, 0, 20, 0, 1, 0, 0, 5};
  int32_t bias_starts[kRows + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  int32_t token_ids[kRows], ranks[kRows], top_ids[kRows * kTop];
  bool is_finite[kRows];
  float logprobs[kRows], top_logprobs[kRows * kTop];
  SampleArgs args{};
};

void check_rows(Isa isa, int vocab_size) {
  Device one(isa, 1), three(isa, 3);
  Batch batch(vocab_size), again(vocab_size);
  one.kernels().sample(batch.args, one.pool(), one.scratch());
  three.kernels().sample(again.args, three.pool(), three.scratch());
  CHECK(std::memcmp(batch.token_ids, again.token_ids, sizeof(batch.token_ids)) == 0,
        "threads changed a draw of %d tokens", vocab_size);
  for (int r = 0; r < kRows; ++r) {
    const int token = batch.token_ids[r];
    const bool is_faulty = r == 1 && vocab_size > 1;
    CHECK(batch.is_finite[r] == (token >= 0), "row %d", r);
    CHECK(is_faulty == (token < 0) && token < vocab_size, "row %d drew %d", r, token);
    if (token < 0 || vocab_size == 1) continue;
    CHECK(token % 32 != 0, "row %d drew %d, which is not allowed", r, token);
  }
}

}  // namespace

void test_sampling() {
  const CpuFeatures cpu = detect_cpu();
  for (const Isa isa : kIsas) {
    if (find_kernels(isa, cpu) == nullptr) continue;
    for (const int vocab_size : {1, 2, 17, 64, 65, 1000, 8193, 70000}) check_rows(isa, vocab_size);
  }
}

}  // namespace headrace::tests
