// sample: see src/headrace/kernels/reference/sampling.py for the specification.
#include <cmath>
#include <cstring>

#include "base/kernels.h"
#include "sampling/draw.h"
#include "sampling/edit.h"
#include "sampling/scan.h"
#include "sampling/select.h"
#include "sampling/truncate.h"

namespace headrace::HR_ISA {
namespace {

// A single row is shared by several threads from this vocabulary on.
constexpr int kSharedVocabulary = 65536;
// As in the reference.
constexpr float kLargestInverseTemperature = 1e30f;

// Memory of whoever works on a row.
struct Workspace {
  float* edited;      // [V]: a copy, where the raw logits are still needed
  float* raw_maxima;  // [blocks]
  float* maxima;      // [blocks]
  float* sums;        // [segments]
  Draw* draws;        // [segments]
  double* bins;       // [kBins + 1]
  Counts counts;
  Candidate* candidates;  // [V]
  int32_t* matches;       // [history_stride]; null where no row is penalised for repetition
};

constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

HR_INLINE size_t matches_bytes(const SampleArgs& args) {
  return args.dry_multiplier == nullptr
             ? 0
             : aligned(sizeof(int32_t) * static_cast<size_t>(args.history_stride));
}

HR_INLINE size_t workspace_bytes(const SampleArgs& args) {
  const size_t v = static_cast<size_t>(args.vocab_size);
  const size_t blocks = (v + kBlock - 1) / kBlock, segments = (v + kSegment - 1) / kSegment;
  return aligned(4 * v) + 2 * aligned(4 * blocks) + aligned(4 * segments) +
         aligned(sizeof(Draw) * segments) + aligned(sizeof(double) * (kBins + 1)) +
         aligned((v + 31) / 32 * 4) + aligned(4 * v) + aligned(sizeof(Candidate) * v) +
         matches_bytes(args);
}

template <typename T>
HR_INLINE T* take(std::byte*& memory, size_t count) {
  T* taken = reinterpret_cast<T*>(memory);
  memory += aligned(sizeof(T) * count);
  return taken;
}

HR_INLINE Workspace workspace_at(std::byte* memory, const SampleArgs& args) {
  const size_t v = static_cast<size_t>(args.vocab_size);
  const size_t blocks = (v + kBlock - 1) / kBlock, segments = (v + kSegment - 1) / kSegment;
  Workspace w;
  w.edited = take<float>(memory, v);
  w.raw_maxima = take<float>(memory, blocks);
  w.maxima = take<float>(memory, blocks);
  w.sums = take<float>(memory, segments);
  w.draws = take<Draw>(memory, segments);
  w.bins = take<double>(memory, kBins + 1);
  w.counts.seen = take<uint32_t>(memory, (v + 31) / 32);
  w.counts.times = take<int32_t>(memory, v);
  w.candidates = take<Candidate>(memory, v);
  w.matches = matches_bytes(args) == 0 ? nullptr : reinterpret_cast<int32_t*>(memory);
  return w;
}

// What is kept of the tokens up to the cut.
HR_INLINE Band narrow(const SampleArgs& args, int r, const Row& row, const Scaling& scaling,
                      Cut cut, uint64_t key, const Workspace& w) {
  if (args.top_n_sigma[r] > 0.0f) {
    const float lowest = sigma_bound(row, scaling, args.top_n_sigma[r]);
    if (lowest > cut.value) cut = {lowest, INT32_MAX};
  }
  Band band{kFromTheFirst, cut};
  if (args.typical_p[r] < 1.0f) {
    band = cut_typical(row, scaling, band, args.typical_p[r], w.candidates);
  }
  if (args.xtc_probability[r] > 0.0f) {
    // No token has this id, so its hash is a number of the draw's own.
    const Vec chance = to_float(shift_right<9>(hash_tokens(key, words(0xffffffffu))));
    if ((first_lane(chance) + 0.5f) * 0x1p-23f < args.xtc_probability[r]) {
      band = exclude_top(row, scaling, band, args.xtc_threshold[r], w.candidates);
    }
  }
  return band;
}

// A token, or -1 if nothing was left to draw, and what it was drawn from.
struct Drawn {
  int token;
  bool is_certain;  // without noise: nothing else could have been drawn
  Scaling scaling;
  Band band;
};

// From an edited row whose maxima are known.
HR_INLINE Drawn draw(const SampleArgs& args, int r, const Row& row, ThreadPool* pool,
                     const Workspace& w) {
  const int likeliest = first_largest(row);
  const float largest = row.values[likeliest];
  if (largest == -__builtin_inff()) return {-1, true, {}, {}};
  const float temperature = args.temperature[r];
  if (!(temperature > 0.0f)) return {likeliest, true, {}, {}};
  const float inverse = 1.0f / temperature;
  const Scaling scaling{
      largest, inverse < kLargestInverseTemperature ? inverse : kLargestInverseTemperature};
  const int top_k = args.top_k[r];
  const float top_p = args.top_p[r], min_p = args.min_p[r];
  Cut cut = kKeepAll;
  if (top_k > 0 && top_k < row.size) {
    cut = cut_top_k(row, scaling, top_k, top_p, w.candidates);
  } else if (top_p < 1.0f) {
    cut = cut_top_p(row, scaling, top_p, pool, w.sums, w.bins, w.candidates);
  }
  const float lowest = min_p > 0.0f ? static_cast<float>(::log(double{min_p})) : cut.value;
  if (lowest > cut.value) cut = {lowest, INT32_MAX};
  const uint64_t key = row_key(args.seeds[r], args.output_positions[r]);
  const Band band = narrow(args, r, row, scaling, cut, key, w);
  return {draw_token(row, scaling, band, key, pool, w.draws), false, scaling, band};
}

// Log-probability and rank of the token, and the best alternatives, among what was left to draw.
HR_INLINE void report_drawn(const SampleArgs& args, int r, const Row& row, const Drawn& drawn,
                            const Workspace& w) {
  Candidate* items = w.candidates;
  int count = 1;
  double total = 1.0;
  items[0] = {0.0f, 1.0f, drawn.token};
  if (!drawn.is_certain) {
    count = collect_band(row, drawn.scaling, drawn.band, items);
    total = 0.0;
    for (int i = 0; i < count; ++i) total += double{items[i].weight};
  }
  const double log_total = ::log(total);
  Candidate token = items[0];
  for (int i = 0; i < count; ++i) {
    items[i].weight = 1.0f;
    if (items[i].id == drawn.token) token = items[i];
  }
  args.ranks[r] = 1;
  for (int i = 0; i < count; ++i) args.ranks[r] += comes_before(items[i], token);
  args.logprobs[r] = static_cast<float>(double{token.value} - log_total);
  const int wanted = args.num_logprobs[r] < args.num_top ? args.num_logprobs[r] : args.num_top;
  if (wanted == 0) return;
  const int shown = select_prefix(items, count, wanted);
  sort_small(items, 0, shown);
  for (int i = 0; i < shown; ++i) {
    args.top_ids[int64_t{r} * args.num_top + i] = items[i].id;
    args.top_logprobs[int64_t{r} * args.num_top + i] =
        static_cast<float>(double{items[i].value} - log_total);
  }
}

// Log-probability and rank of the token, and the best alternatives, of the raw row.
HR_INLINE void report(const SampleArgs& args, int r, const Row& raw, int token, ThreadPool* pool,
                      const Workspace& w) {
  const float largest = raw.values[first_largest(raw)];
  const double log_total = ::log(sum_exp(raw, largest, 1.0f, pool, w.sums));
  const auto logprob = [&](float value) {
    return static_cast<float>(double{value} - double{largest} - log_total);
  };
  args.logprobs[r] = logprob(raw.values[token]);
  args.ranks[r] = rank_of(raw, token, pool, w.sums);
  if (args.num_logprobs[r] == 0) return;
  const int wanted = args.num_logprobs[r] < args.num_top ? args.num_logprobs[r] : args.num_top;
  const int count = select_top(raw, Unscaled{}, wanted, w.candidates);
  sort_small(w.candidates, 0, count);
  for (int i = 0; i < count; ++i) {
    args.top_ids[int64_t{r} * args.num_top + i] = w.candidates[i].id;
    args.top_logprobs[int64_t{r} * args.num_top + i] = logprob(w.candidates[i].value);
  }
}

HR_INLINE void clear_row(const SampleArgs& args, int r) {
  args.token_ids[r] = -1;
  args.is_finite[r] = false;
  args.logprobs[r] = __builtin_nanf("");
  args.ranks[r] = 0;
  for (int i = 0; i < args.num_top; ++i) {
    args.top_ids[int64_t{r} * args.num_top + i] = -1;
    args.top_logprobs[int64_t{r} * args.num_top + i] = -__builtin_inff();
  }
}

static void sample_row(const SampleArgs& args, int r, ThreadPool* pool, const Workspace& w) {
  clear_row(args, r);
  float* logits = args.logits + r * args.logits_stride;
  const Row raw{logits, args.vocab_size, w.raw_maxima};
  if (!find_maxima(raw, pool, w.sums)) return;
  Row row = raw;
  const bool wants_logprobs = args.num_logprobs[r] >= 0;
  if (has_edits(args, r)) {
    float* edited = logits;
    if (wants_logprobs) {
      edited = w.edited;
      std::memcpy(edited, logits, sizeof(float) * static_cast<size_t>(args.vocab_size));
    }
    edit_logits(args, r, edited, w.counts, w.matches);
    row = {edited, args.vocab_size, w.maxima};
    if (!find_maxima(row, pool, w.sums)) return;
  }
  const Drawn drawn = draw(args, r, row, pool, w);
  args.token_ids[r] = drawn.token;
  args.is_finite[r] = drawn.token >= 0;
  if (drawn.token < 0 || !wants_logprobs) return;
  if (args.post_sampling[r]) {
    report_drawn(args, r, row, drawn, w);
  } else {
    report(args, r, raw, drawn.token, pool, w);
  }
}

static void score_row(const SampleArgs& args, int r, ThreadPool* pool, const Workspace& w) {
  const int token = args.token_ids[r];
  clear_row(args, r);
  args.token_ids[r] = token;
  const Row raw{args.logits + r * args.logits_stride, args.vocab_size, w.raw_maxima};
  if (!find_maxima(raw, pool, w.sums)) return;
  if (raw.values[first_largest(raw)] == -__builtin_inff()) return;
  args.is_finite[r] = true;
  report(args, r, raw, token, pool, w);
}

using RowKernel = void (*)(const SampleArgs&, int, ThreadPool*, const Workspace&);

static void run_rows(const SampleArgs& args, ThreadPool& pool, Mapping& scratch, RowKernel kernel) {
  const size_t stride = workspace_bytes(args);
  const bool is_shared = args.num_rows < pool.num_threads() && args.vocab_size >= kSharedVocabulary;
  const size_t bytes = stride * static_cast<size_t>(is_shared ? 1 : pool.num_threads());
  if (scratch.size() < bytes) scratch = Mapping(bytes);
  if (is_shared) {
    const Workspace w = workspace_at(scratch.data(), args);
    for (int r = 0; r < args.num_rows; ++r) kernel(args, r, &pool, w);
    return;
  }
  pool.parallel_for(args.num_rows, [&](int64_t r, int thread) {
    const Workspace w = workspace_at(scratch.data() + thread * stride, args);
    kernel(args, static_cast<int>(r), nullptr, w);
  });
}

}  // namespace

void sample(const SampleArgs& args, ThreadPool& pool, Mapping& scratch) {
  run_rows(args, pool, scratch, sample_row);
}

void score(const SampleArgs& args, ThreadPool& pool, Mapping& scratch) {
  run_rows(args, pool, scratch, score_row);
}

}  // namespace headrace::HR_ISA
