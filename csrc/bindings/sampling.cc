#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "program/device.h"

namespace headrace {
namespace {

template <typename T>
using Out1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

// kernels/ops.py: SampleBatch, with the shapes that the checks below insist on.
struct Batch {
  Array1<float> temperature;
  Array1<int32_t> top_k;
  Array1<float> top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  Array1<uint64_t> seeds;
  Array1<int64_t> output_positions;
  Array1<int32_t> num_logprobs, slots;
  Array2<int32_t> history;
  Array1<int32_t> history_lengths, num_prompt, bias_starts, bias_ids;
  Array1<float> bias_values;
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
                          batch.seeds.size(),
                          batch.output_positions.size(),
                          batch.num_logprobs.size(),
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

void sample(Device& device, const Logits& logits, const Array1<float>& temperature,
            const Array1<int32_t>& top_k, const Array1<float>& top_p, const Array1<float>& min_p,
            const Array1<float>& presence_penalty, const Array1<float>& frequency_penalty,
            const Array1<float>& repetition_penalty, const Array1<uint64_t>& seeds,
            const Array1<int64_t>& output_positions, const Array1<int32_t>& num_logprobs,
            const Array1<int32_t>& slots, const Array2<int32_t>& history,
            const Array1<int32_t>& history_lengths, const Array1<int32_t>& num_prompt,
            const Array1<int32_t>& bias_starts, const Array1<int32_t>& bias_ids,
            const Array1<float>& bias_values, const std::optional<Array2<uint32_t>>& allowed,
            const Out1<int32_t>& token_ids, const Out1<bool>& is_finite,
            const Out1<float>& logprobs, const Out1<int32_t>& ranks, const Out2<int32_t>& top_ids,
            const Out2<float>& top_logprobs) {
  const Batch batch{temperature,
                    top_k,
                    top_p,
                    min_p,
                    presence_penalty,
                    frequency_penalty,
                    repetition_penalty,
                    seeds,
                    output_positions,
                    num_logprobs,
                    slots,
                    history,
                    history_lengths,
                    num_prompt,
                    bias_starts,
                    bias_ids,
                    bias_values};
  const size_t rows = logits.shape(0), vocab_size = logits.shape(1), num_top = top_ids.shape(1);
  require(vocab_size > 0 && (rows == 0 || logits.stride(1) == 1),
          "Logits are rows of adjacent numbers.");
  require(batch.bias_starts.size() > 0, "bias_starts has one entry more than there are rows.");
  check_sizes(batch, rows);
  check_values(batch, static_cast<int64_t>(rows), static_cast<int64_t>(vocab_size),
               static_cast<int64_t>(num_top));
  require(token_ids.size() == rows && is_finite.size() == rows && logprobs.size() == rows &&
              ranks.size() == rows && top_ids.shape(0) == rows && top_logprobs.shape(0) == rows &&
              top_logprobs.shape(1) == num_top,
          "The outputs of a sample batch have one row per row of logits.");
  SampleArgs args{};
  args.logits = logits.data();
  args.logits_stride = logits.stride(0);
  args.num_rows = static_cast<int32_t>(rows);
  args.vocab_size = static_cast<int32_t>(vocab_size);
  args.temperature = temperature.data();
  args.top_p = top_p.data();
  args.min_p = min_p.data();
  args.presence_penalty = presence_penalty.data();
  args.frequency_penalty = frequency_penalty.data();
  args.repetition_penalty = repetition_penalty.data();
  args.top_k = top_k.data();
  args.seeds = seeds.data();
  args.output_positions = output_positions.data();
  args.num_logprobs = num_logprobs.data();
  args.slots = slots.data();
  args.history = history.data();
  args.history_stride = static_cast<int64_t>(history.shape(1));
  args.history_lengths = history_lengths.data();
  args.num_prompt = num_prompt.data();
  args.bias_starts = bias_starts.data();
  args.bias_ids = bias_ids.data();
  args.bias_values = bias_values.data();
  if (allowed) {
    const auto& mask = *allowed;
    require(mask.shape(0) == rows && mask.shape(1) >= (vocab_size + 31) / 32,
            "allowed has one bit per row and token.");
    args.allowed = mask.data();
    args.allowed_stride = static_cast<int64_t>(mask.shape(1));
  }
  args.token_ids = token_ids.data();
  args.is_finite = is_finite.data();
  args.logprobs = logprobs.data();
  args.ranks = ranks.data();
  args.top_ids = top_ids.data();
  args.top_logprobs = top_logprobs.data();
  args.num_top = static_cast<int32_t>(num_top);
  const nb::gil_scoped_release release;
  device.kernels().sample(args, device.pool(), device.scratch());
}

}  // namespace

void bind_sampling(nb::module_& module) { module.def("sample", &sample); }

}  // namespace headrace
