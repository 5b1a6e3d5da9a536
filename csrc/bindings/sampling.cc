#include <nanobind/stl/optional.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bindings/bindings.h"
#include "program/device.h"

namespace headrace {
namespace {

template <typename T>
using Out1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

// kernels/values.py: SampleBatch, with the shapes that the checks below insist on.
struct Batch {
  Array1<float> temperature;
  Array1<int32_t> top_k;
  Array1<float> top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  Array1<float> typical_p, top_n_sigma, xtc_probability, xtc_threshold;
  Array1<uint64_t> seeds;
  Array1<int64_t> output_positions;
  Array1<int32_t> num_logprobs;
  Array1<bool> post_sampling;
  Array1<int32_t> slots;
  Array2<int32_t> history;
  Array1<int32_t> history_lengths, num_prompt, bias_starts, bias_ids;
  Array1<float> bias_values;
};

// kernels/values.py: DryBatch.
struct Dry {
  Array1<float> multiplier, base;
  Array1<int32_t> allowed_length, window, sets;
  Array2<uint32_t> breakers;
  Array2<int32_t> words;
};

void require(bool condition, const char* sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

void check_sizes(const Batch& batch, size_t rows) {
  const size_t sizes[] = {batch.temperature.size(),
                          batch.top_k.size(),
                          batch.top_p.size(),
                          batch.min_p.size(),
                          batch.presence_penalty.size(),
                          batch.frequency_penalty.size(),
                          batch.repetition_penalty.size(),
                          batch.typical_p.size(),
                          batch.top_n_sigma.size(),
                          batch.xtc_probability.size(),
                          batch.xtc_threshold.size(),
                          batch.seeds.size(),
                          batch.output_positions.size(),
                          batch.num_logprobs.size(),
                          batch.post_sampling.size(),
                          batch.slots.size(),
                          batch.history_lengths.size(),
                          batch.num_prompt.size(),
                          batch.bias_starts.size() - 1};
  for (const size_t size : sizes)
    require(size == rows, "Every array of a sample batch has one entry per row.");
  require(batch.bias_ids.size() == batch.bias_values.size(), "Every bias has an id and a value.");
}

void check_values(const Batch& batch, int64_t rows, int64_t vocab_size, int64_t num_top) {
  const int32_t* starts = batch.bias_starts.data();
  const auto num_biases = static_cast<int64_t>(batch.bias_ids.size());
  require(starts[0] >= 0 && starts[rows] <= num_biases, "bias_starts point past the biases.");
  for (int64_t r = 0; r < rows; ++r) {
    require(starts[r] <= starts[r + 1], "bias_starts must not fall.");
    const int64_t slot = batch.slots.data()[r], length = batch.history_lengths.data()[r];
    const int64_t prompt = batch.num_prompt.data()[r];
    require(slot >= 0 && slot < static_cast<int64_t>(batch.history.shape(0)),
            "A slot has no history row.");
    require(length >= 0 && length <= static_cast<int64_t>(batch.history.shape(1)),
            "A history is too long.");
    require(prompt >= 0 && prompt <= length, "A prompt is longer than its history.");
    require(batch.num_logprobs.data()[r] <= num_top, "num_logprobs exceeds the outputs' width.");
    require(batch.top_k.data()[r] >= 0, "top_k is not negative.");
  }
  for (int64_t i = starts[0]; i < starts[rows]; ++i) {
    const int32_t id = batch.bias_ids.data()[i];
    require(id >= 0 && id < vocab_size, "A bias names a token outside the vocabulary.");
  }
}

// A list of words is lengths with so many ids behind each; 0 ends it.
void check_words(const int32_t* words, int64_t size) {
  for (int64_t i = 0; i < size && words[i] != 0; i += 1 + words[i]) {
    require(words[i] > 0 && words[i] < size - i, "A breaker's word does not end.");
  }
}

void check_dry(const Dry& dry, size_t rows, int64_t vocab_size) {
  for (const size_t size : {dry.multiplier.size(), dry.base.size(), dry.allowed_length.size(),
                            dry.window.size(), dry.sets.size()}) {
    require(size == rows, "Every array of a DRY batch has one entry per row.");
  }
  const auto num_sets = static_cast<int64_t>(dry.breakers.shape(0));
  require(dry.breakers.shape(1) >= static_cast<size_t>((vocab_size + 31) / 32),
          "Breakers have one bit per token.");
  require(static_cast<int64_t>(dry.words.shape(0)) == num_sets, "Every set has a row of words.");
  const auto width = static_cast<int64_t>(dry.words.shape(1));
  for (int64_t set = 0; set < num_sets; ++set) check_words(dry.words.data() + set * width, width);
  for (size_t r = 0; r < rows; ++r) {
    if (dry.multiplier.data()[r] == 0.0f) continue;
    require(dry.sets.data()[r] >= 0 && dry.sets.data()[r] < num_sets, "A row has no breakers.");
    require(dry.allowed_length.data()[r] >= 1, "A repetition has at least one token.");
    require(dry.window.data()[r] >= 0, "A window is not negative.");
  }
}

struct Outputs {
  Out1<int32_t> token_ids;
  Out1<bool> is_finite;
  Out1<float> logprobs;
  Out1<int32_t> ranks;
  Out2<int32_t> top_ids;
  Out2<float> top_logprobs;
};

void check_outputs(const Outputs& out, size_t rows) {
  require(out.token_ids.size() == rows && out.is_finite.size() == rows &&
              out.logprobs.size() == rows && out.ranks.size() == rows &&
              out.top_ids.shape(0) == rows && out.top_logprobs.shape(0) == rows &&
              out.top_logprobs.shape(1) == out.top_ids.shape(1),
          "The outputs of a sample batch have one row per row of logits.");
}

void bind_outputs(const Outputs& out, SampleArgs& args) {
  args.token_ids = out.token_ids.data();
  args.is_finite = out.is_finite.data();
  args.logprobs = out.logprobs.data();
  args.ranks = out.ranks.data();
  args.top_ids = out.top_ids.data();
  args.top_logprobs = out.top_logprobs.data();
  args.num_top = static_cast<int32_t>(out.top_ids.shape(1));
}

// A batch and its logits, bound once: contents may change between two draws, lengths not.
class BoundSample {
 public:
  BoundSample(std::shared_ptr<Device> device, Logits logits, Batch batch, Outputs out,
              nb::object output)
      : device_(std::move(device)),
        logits_(std::move(logits)),
        batch_(std::move(batch)),
        out_(std::move(out)),
        output_(std::move(output)) {
    const size_t rows = logits_.shape(0);
    require(logits_.shape(1) > 0 && (rows == 0 || logits_.stride(1) == 1),
            "Logits are rows of adjacent numbers.");
    require(batch_.bias_starts.size() > 0, "bias_starts has one entry more than there are rows.");
    check_sizes(batch_, rows);
    check_outputs(out_, rows);
    bind_batch();
    bind_outputs(out_, args_);
  }

  // The caller's object around the outputs.
  const nb::object& output() const { return output_; }

  // Penalise repetition. The arrays' contents do not change afterwards.
  void set_dry(const Array1<float>& multiplier, const Array1<float>& base,
               const Array1<int32_t>& allowed_length, const Array1<int32_t>& window,
               const Array1<int32_t>& sets, const Array2<uint32_t>& breakers,
               const Array2<int32_t>& words) {
    dry_ = Dry{multiplier, base, allowed_length, window, sets, breakers, words};
    check_dry(*dry_, logits_.shape(0), args_.vocab_size);
    args_.dry_multiplier = multiplier.data();
    args_.dry_base = base.data();
    args_.dry_allowed_length = allowed_length.data();
    args_.dry_window = window.data();
    args_.dry_sets = sets.data();
    args_.dry_breakers = breakers.data();
    args_.dry_breakers_stride = static_cast<int64_t>(breakers.shape(1));
    args_.dry_words = words.data();
    args_.dry_words_stride = static_cast<int64_t>(words.shape(1));
  }

  // Of the kernel, in the last draw.
  double seconds() const { return seconds_; }

  // The tokens as a list: behind a model that empties the caches, going through the array costs
  // more than the draw.
  nb::list draw(const std::optional<Array2<uint32_t>>& allowed) {
    check_values(batch_, args_.num_rows, args_.vocab_size, args_.num_top);
    SampleArgs args = args_;
    if (allowed) {
      const auto words = static_cast<size_t>((args.vocab_size + 31) / 32);
      require(allowed->shape(0) == logits_.shape(0) && allowed->shape(1) >= words,
              "allowed has one bit per row and token.");
      args.allowed = allowed->data();
      args.allowed_stride = static_cast<int64_t>(allowed->shape(1));
    }
    {
      const nb::gil_scoped_release release;
      const auto start = std::chrono::steady_clock::now();
      device_->kernels().sample(args, device_->pool(), device_->scratch());
      seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    nb::list tokens;
    for (int32_t r = 0; r < args.num_rows; ++r) tokens.append(args.token_ids[r]);
    return tokens;
  }

 private:
  void bind_batch() {
    args_.logits = logits_.data();
    args_.logits_stride = logits_.stride(0);
    args_.num_rows = static_cast<int32_t>(logits_.shape(0));
    args_.vocab_size = static_cast<int32_t>(logits_.shape(1));
    args_.temperature = batch_.temperature.data();
    args_.top_p = batch_.top_p.data();
    args_.min_p = batch_.min_p.data();
    args_.presence_penalty = batch_.presence_penalty.data();
    args_.frequency_penalty = batch_.frequency_penalty.data();
    args_.repetition_penalty = batch_.repetition_penalty.data();
    args_.typical_p = batch_.typical_p.data();
    args_.top_n_sigma = batch_.top_n_sigma.data();
    args_.xtc_probability = batch_.xtc_probability.data();
    args_.xtc_threshold = batch_.xtc_threshold.data();
    args_.top_k = batch_.top_k.data();
    args_.seeds = batch_.seeds.data();
    args_.output_positions = batch_.output_positions.data();
    args_.num_logprobs = batch_.num_logprobs.data();
    args_.post_sampling = batch_.post_sampling.data();
    args_.slots = batch_.slots.data();
    args_.history = batch_.history.data();
    args_.history_stride = static_cast<int64_t>(batch_.history.shape(1));
    args_.history_lengths = batch_.history_lengths.data();
    args_.num_prompt = batch_.num_prompt.data();
    args_.bias_starts = batch_.bias_starts.data();
    args_.bias_ids = batch_.bias_ids.data();
    args_.bias_values = batch_.bias_values.data();
  }

  std::shared_ptr<Device> device_;
  Logits logits_;
  Batch batch_;
  std::optional<Dry> dry_;
  Outputs out_;
  nb::object output_;
  SampleArgs args_{};
  double seconds_ = 0.0;
};

void make_bound_sample(BoundSample* self, std::shared_ptr<Device> device, const Logits& logits,
                       const Array1<float>& temperature, const Array1<int32_t>& top_k,
                       const Array1<float>& top_p, const Array1<float>& min_p,
                       const Array1<float>& presence_penalty,
                       const Array1<float>& frequency_penalty,
                       const Array1<float>& repetition_penalty, const Array1<float>& typical_p,
                       const Array1<float>& top_n_sigma, const Array1<float>& xtc_probability,
                       const Array1<float>& xtc_threshold, const Array1<uint64_t>& seeds,
                       const Array1<int64_t>& output_positions, const Array1<int32_t>& num_logprobs,
                       const Array1<bool>& post_sampling, const Array1<int32_t>& slots,
                       const Array2<int32_t>& history, const Array1<int32_t>& history_lengths,
                       const Array1<int32_t>& num_prompt, const Array1<int32_t>& bias_starts,
                       const Array1<int32_t>& bias_ids, const Array1<float>& bias_values,
                       const Out1<int32_t>& token_ids, const Out1<bool>& is_finite,
                       const Out1<float>& logprobs, const Out1<int32_t>& ranks,
                       const Out2<int32_t>& top_ids, const Out2<float>& top_logprobs,
                       const nb::object& output) {
  const Batch batch{temperature,
                    top_k,
                    top_p,
                    min_p,
                    presence_penalty,
                    frequency_penalty,
                    repetition_penalty,
                    typical_p,
                    top_n_sigma,
                    xtc_probability,
                    xtc_threshold,
                    seeds,
                    output_positions,
                    num_logprobs,
                    post_sampling,
                    slots,
                    history,
                    history_lengths,
                    num_prompt,
                    bias_starts,
                    bias_ids,
                    bias_values};
  new (self) BoundSample(std::move(device), logits, batch,
                         {token_ids, is_finite, logprobs, ranks, top_ids, top_logprobs}, output);
}

// What `token_ids` had for chances in these rows of logits; fills the other outputs.
void score(const std::shared_ptr<Device>& device, const Logits& logits,
           const Array1<int32_t>& num_logprobs, const Out1<int32_t>& token_ids,
           const Out1<bool>& is_finite, const Out1<float>& logprobs, const Out1<int32_t>& ranks,
           const Out2<int32_t>& top_ids, const Out2<float>& top_logprobs) {
  const size_t rows = logits.shape(0);
  require(logits.shape(1) > 0 && (rows == 0 || logits.stride(1) == 1),
          "Logits are rows of adjacent numbers.");
  require(num_logprobs.size() == rows, "num_logprobs has one entry per row.");
  const Outputs out{token_ids, is_finite, logprobs, ranks, top_ids, top_logprobs};
  check_outputs(out, rows);
  const auto num_top = static_cast<int32_t>(top_ids.shape(1));
  const auto vocab_size = static_cast<int32_t>(logits.shape(1));
  for (size_t r = 0; r < rows; ++r) {
    const int32_t id = token_ids.data()[r], wanted = num_logprobs.data()[r];
    require(id >= 0 && id < vocab_size, "A token is outside the vocabulary.");
    require(wanted >= 0 && wanted <= num_top, "num_logprobs exceeds the outputs' width.");
  }
  SampleArgs args{};
  args.logits = logits.data();
  args.logits_stride = logits.stride(0);
  args.num_rows = static_cast<int32_t>(rows);
  args.vocab_size = vocab_size;
  args.num_logprobs = num_logprobs.data();
  bind_outputs(out, args);
  const nb::gil_scoped_release release;
  device->kernels().score(args, device->pool(), device->scratch());
}

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::class_<BoundSample>(module, "BoundSample")
      .def("__init__", &make_bound_sample)
      .def_prop_ro("output", &BoundSample::output)
      .def_prop_ro("seconds", &BoundSample::seconds)
      .def("set_dry", &BoundSample::set_dry)
      .def("__call__", &BoundSample::draw, nb::arg("allowed").none());
  module.def("score", &score);
}

}  // namespace headrace
