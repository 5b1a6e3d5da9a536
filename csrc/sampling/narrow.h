// What top_n_sigma, typical_p and xtc leave of the tokens up to a cut.
#pragma once

#include <cmath>

#include "sampling/truncate.h"

namespace headrace::HR_ISA {

// Kept tokens lie between two in the order (scaled value descending, id ascending), both included.
struct Band {
  Cut first;
  Cut last;

  HR_INLINE bool has(float value, int32_t id) const {
    return !(value > first.value || (value == first.value && id < first.id)) &&
           !(value < last.value || (value == last.value && id > last.id));
  }
};

inline constexpr Cut kFromTheFirst = {__builtin_inff(), -1};

// The smallest scaled value that is at most n standard deviations (of all tokens that can be drawn)
// below the largest, which is 0.
static float sigma_bound(const Row& row, const Scaling& scaling, float n) {
  double count = 0.0, sum = 0.0, squares = 0.0;
  for (int i = 0; i < row.size; ++i) {
    const double value = double{scaling(row.values[i])};
    if (value == -HUGE_VAL) continue;
    count += 1.0, sum += value, squares += value * value;
  }
  const double mean = sum / count, variance = squares / count - mean * mean;
  return static_cast<float>(-double{n} * ::sqrt(variance > 0.0 ? variance : 0.0));
}

// The tokens of the band with their weights, in id order; returns how many.
static int collect_band(const Row& row, const Scaling& scaling, const Band& band, Candidate* out) {
  int count = 0;
  for (int block = 0; block < row.num_blocks(); ++block) {
    if (scaling(row.maxima[block]) < band.last.value) continue;
    for (int i = block * kBlock; i < (block + 1) * kBlock && i < row.size; ++i) {
      const float value = scaling(row.values[i]);
      if (value == -__builtin_inff() || !band.has(value, i)) continue;
      out[count++] = {value, 0.0f, i};
    }
  }
  weigh(out, count);
  return count;
}

// Locally typical tokens: those whose information is nearest to the entropy, up to a share p of the
// probability; all that are as near as the last of them.
static Band cut_typical(const Row& row, const Scaling& scaling, Band band, float p,
                        Candidate* items) {
  const int count = collect_band(row, scaling, band, items);
  double total = 0.0, mean = 0.0;
  for (int i = 0; i < count; ++i) {
    total += double{items[i].weight};
    mean += double{items[i].weight} * double{items[i].value};
  }
  const float centre = static_cast<float>(mean / total);
  for (int i = 0; i < count; ++i) items[i].value = -::fabsf(items[i].value - centre);
  const int kept = select_prefix(items, count, double{p} * total);
  const float distance = last_of(items, kept).value;
  const int again = collect_band(row, scaling, band, items);
  float low = __builtin_inff(), high = -__builtin_inff();
  for (int i = 0; i < again; ++i) {
    const float value = items[i].value;
    if (-::fabsf(value - centre) < distance) continue;
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  if (low > band.last.value) band.last = {low, INT32_MAX};
  if (high < band.first.value) band.first = {high, -1};
  return band;
}

// Without the tokens that are at least `threshold` likely, but for the last of them.
static Band exclude_top(const Row& row, const Scaling& scaling, Band band, float threshold,
                        Candidate* items) {
  const int count = collect_band(row, scaling, band, items);
  double total = 0.0;
  for (int i = 0; i < count; ++i) total += double{items[i].weight};
  int likely = 0;
  for (int i = 0; i < count; ++i) {
    if (double{items[i].weight} >= double{threshold} * total) items[likely++] = items[i];
  }
  if (likely >= 2) band.first = last_of(items, likely);
  return band;
}

}  // namespace headrace::HR_ISA
