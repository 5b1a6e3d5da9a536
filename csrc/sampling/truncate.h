// Where top_k, top_p and min_p cut the vocabulary.
#pragma once

#include <cmath>

#include "sampling/select.h"

namespace headrace::HR_ISA {

// Bins of scaled values from 0 down, with the weight that fell in each. A value below the last bin
// goes to one more, which nobody reads: cheaper than a branch that is hard to predict.
inline constexpr int kBins = 2048;

struct Histogram {
  double* weights;  // [kBins + 1]
  float per_unit;   // bins per unit of scaled value

  // The bin is the whole part.
  HR_INLINE Vec place(Vec scaled) const {
    return min(scaled * splat(-per_unit), splat(static_cast<float>(kBins)));
  }
};

// The last of the first `count` candidates.
HR_INLINE Cut last_of(const Candidate* items, int count) {
  Candidate last = items[0];
  for (int i = 1; i < count; ++i) last = comes_before(last, items[i]) ? items[i] : last;
  return {last.value, last.id};
}

// Sets weights to e^value.
HR_INLINE void weigh(Candidate* items, int count) {
  for (int i = 0; i < count; i += kLanes) {
    float lanes[kLanes] = {};
    const int n = count - i < kLanes ? count - i : kLanes;
    for (int lane = 0; lane < n; ++lane) lanes[lane] = items[i + lane].value;
    store(lanes, exp(load(lanes)));
    for (int lane = 0; lane < n; ++lane) items[i + lane].weight = lanes[lane];
  }
}

static Cut cut_top_k(const Row& row, const Scaling& scaling, int top_k, float top_p,
                     Candidate* candidates) {
  int count = select_top(row, scaling, top_k, candidates);
  if (top_p < 1.0f) {
    weigh(candidates, count);
    double total = 0.0;
    for (int i = 0; i < count; ++i) total += double{candidates[i].weight};
    count = select_prefix(candidates, count, double{top_p} * total);
  }
  return last_of(candidates, count);
}

// Adds up the weights of the tokens, in id order. Blocks below `low` are left out.
HR_INLINE void fill(const Row& row, const Scaling& scaling, float low, const Histogram& histogram) {
  for (int bin = 0; bin <= kBins; ++bin) histogram.weights[bin] = 0.0;
  for (int block = 0; block < row.num_blocks(); ++block) {
    if (!(scaling(row.maxima[block]) >= low)) continue;
    for (int i = block * kBlock; i < (block + 1) * kBlock && i < row.size; i += kLanes) {
      float places[kLanes], weights[kLanes];
      const Vec scaled = scaling(load_or(row, i, -__builtin_inff()));
      store(places, histogram.place(scaled));
      store(weights, exp(scaled));
      for (int lane = 0; lane < kLanes; ++lane) {
        histogram.weights[static_cast<int>(places[lane])] += double{weights[lane]};
      }
    }
  }
}

// The tokens of one bin, in id order; returns how many.
HR_INLINE int collect_bin(const Row& row, const Scaling& scaling, float low,
                          const Histogram& histogram, int bin, Candidate* out) {
  const Vec begin = splat(static_cast<float>(bin)), end = splat(static_cast<float>(bin + 1));
  const Vec yes = splat(1.0f);
  int count = 0;
  for (int block = 0; block < row.num_blocks(); ++block) {
    if (!(scaling(row.maxima[block]) >= low)) continue;
    for (int i = block * kBlock; i < (block + 1) * kBlock && i < row.size; i += kLanes) {
      const Vec scaled = scaling(load_or(row, i, -__builtin_inff()));
      const Vec place = histogram.place(scaled);
      const Vec is_in = select(place < begin, zero(), select(place < end, yes, zero()));
      if (!any(zero() < is_in)) continue;
      float values[kLanes], flags[kLanes];
      store(values, scaled);
      store(flags, is_in);
      for (int lane = 0; lane < kLanes; ++lane) {
        if (flags[lane] != 0.0f) out[count++] = {values[lane], 0.0f, i + lane};
      }
    }
  }
  return count;
}

// The token at which the sorted probabilities reach top_p. A histogram finds the bin where that
// happens; only the tokens of that bin are put in order.
static Cut cut_top_p(const Row& row, const Scaling& scaling, float top_p, ThreadPool* pool,
                     float* sums, double* bins, Candidate* candidates) {
  const double total = sum_exp(row, scaling.largest, scaling.inverse, pool, sums);
  // Tokens with less than (1 - p) / V of the whole add up to less than 1 - p of it, so the others
  // reach p. The margin covers rounding.
  const float low = static_cast<float>(::log((1.0 - double{top_p}) * total / row.size) - 0.01);
  const Histogram histogram{bins, static_cast<float>(kBins) / -low};
  fill(row, scaling, low, histogram);
  const double target = double{top_p} * total;
  double reached = 0.0;
  int bin = 0;
  while (bin < kBins && reached + bins[bin] < target) reached += bins[bin++];
  if (bin == kBins) return {low, INT32_MAX};  // by rounding only: all of them are needed
  const int count = collect_bin(row, scaling, low, histogram, bin, candidates);
  if (count == 0) return {low, INT32_MAX};
  weigh(candidates, count);
  return last_of(candidates, select_prefix(candidates, count, target - reached));
}

}  // namespace headrace::HR_ISA
