// The likeliest tokens of a row without sorting the vocabulary: quickselect over few candidates.
#pragma once

#include "sampling/scan.h"

namespace headrace::HR_ISA {

// A token that may be among the kept ones. Order: value descending, id ascending.
struct Candidate {
  float value;
  float weight;
  int32_t id;
};

HR_INLINE bool comes_before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

HR_INLINE void exchange(Candidate& a, Candidate& b) {
  const Candidate kept = a;
  a = b;
  b = kept;
}

HR_INLINE void sort_small(Candidate* items, int begin, int end) {
  for (int i = begin + 1; i < end; ++i) {
    const Candidate item = items[i];
    int j = i;
    for (; j > begin && comes_before(item, items[j - 1]); --j) items[j] = items[j - 1];
    items[j] = item;
  }
}

// Moves a pivot to its place in [begin, end), better ones before it; returns the place. The pivot
// is the median of three that a hash picks: no order of logits makes this slow.
HR_INLINE int partition(Candidate* items, int begin, int end) {
  const uint64_t size = static_cast<uint64_t>(end - begin);
  const uint64_t random = splitmix64(static_cast<uint64_t>(begin) << 32 | size);
  int a = begin + static_cast<int>((random & 0x1fffff) % size);
  int b = begin + static_cast<int>((random >> 21 & 0x1fffff) % size);
  int c = begin + static_cast<int>((random >> 42) % size);
  if (comes_before(items[b], items[a])) {
    const int kept = a;
    a = b;
    b = kept;
  }
  if (comes_before(items[c], items[b])) b = comes_before(items[c], items[a]) ? a : c;
  exchange(items[b], items[end - 1]);
  const Candidate pivot = items[end - 1];
  int place = begin;
  for (int i = begin; i < end - 1; ++i) {
    if (comes_before(items[i], pivot)) exchange(items[i], items[place++]);
  }
  exchange(items[place], items[end - 1]);
  return place;
}

// Rearranges so that the shortest prefix of the sorted order whose weights reach `target` comes
// first; returns its length (all, if they never do). Quickselect by weight: linear on average.
static int select_prefix(Candidate* items, int count, double target) {
  int begin = 0, end = count;
  double reached = 0.0;  // by [0, begin)
  while (end - begin > 16) {
    const int place = partition(items, begin, end);
    double before = reached;
    for (int i = begin; i < place; ++i) before += double{items[i].weight};
    if (before >= target) {
      end = place;
      continue;
    }
    reached = before + double{items[place].weight};
    if (reached >= target) return place + 1;
    begin = place + 1;
  }
  sort_small(items, begin, end);
  for (int i = begin; i < end; ++i) {
    reached += double{items[i].weight};
    if (reached >= target) return i + 1;
  }
  return end;
}

// How values are compared: as they are, or scaled (two logits may scale to the same number).
struct Unscaled {
  HR_INLINE float operator()(float z) const { return z; }
};

// Candidates with low <= value < high, in id order, weights 1; returns how many.
template <typename Scale>
HR_INLINE int collect(const Row& row, Scale scale, float low, float high, Candidate* out) {
  int count = 0;
  for (int block = 0; block < row.num_blocks(); ++block) {
    if (!(scale(row.maxima[block]) >= low)) continue;
    const int begin = block * kBlock;
    const int end = row.size - begin < kBlock ? row.size : begin + kBlock;
    for (int i = begin; i < end; ++i) {
      const float value = scale(row.values[i]);
      out[count] = {value, 1.0f, i};
      count += value >= low && value < high;
    }
  }
  return count;
}

// The k likeliest tokens (fewer if the row has fewer above -infinity), in any order. The k-th
// largest of the block maxima is no larger than the k-th largest value: only values from there on
// are looked at.
template <typename Scale>
static int select_top(const Row& row, Scale scale, int k, Candidate* out) {
  float bound = -__FLT_MAX__;
  if (k < row.num_blocks()) {
    for (int block = 0; block < row.num_blocks(); ++block) {
      out[block] = {scale(row.maxima[block]), 1.0f, block};
    }
    const int count = select_prefix(out, row.num_blocks(), k);
    float smallest = out[0].value;
    for (int i = 1; i < count; ++i) smallest = out[i].value < smallest ? out[i].value : smallest;
    bound = smallest > bound ? smallest : bound;
  }
  const int count = collect(row, scale, bound, __builtin_inff(), out);
  return select_prefix(out, count, k);
}

}  // namespace headrace::HR_ISA
