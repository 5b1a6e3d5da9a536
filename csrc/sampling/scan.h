// Passes over a row of logits. A row is cut into segments, segments into blocks of 64; what a pass
// returns is combined in their order, so it does not depend on who did which segment.
#pragma once

#include "base/parallel.h"
#include "sampling/noise.h"

namespace headrace::HR_ISA {

inline constexpr int kBlock = 64;
inline constexpr int kSegment = 128 * kBlock;

// A row of V numbers, and the largest of each block of 64.
struct Row {
  const float* values;
  int size;       // V
  float* maxima;  // [num_blocks]

  HR_INLINE int num_blocks() const { return (size + kBlock - 1) / kBlock; }
  HR_INLINE int num_segments() const { return (size + kSegment - 1) / kSegment; }
};

// Calls fn(segment, begin, end) for all segments: by several threads if there is a pool, else here.
template <typename Fn>
HR_INLINE void for_segments(ThreadPool* pool, int size, Fn fn) {
  const int count = (size + kSegment - 1) / kSegment;
  const auto run = [&](int64_t segment, int) {
    const int begin = static_cast<int>(segment) * kSegment;
    fn(static_cast<int>(segment), begin, size - begin < kSegment ? size : begin + kSegment);
  };
  if (pool != nullptr) {
    pool->parallel_for(count, run);
  } else {
    for (int segment = 0; segment < count; ++segment) run(segment, 0);
  }
}

// Sixteen values from i on; `fill` in the lanes beyond the row.
HR_INLINE Vec load_or(const Row& row, int i, float fill) {
  if (i + kLanes <= row.size) return load(row.values + i);
  if (i >= row.size) return splat(fill);
  const Mask mask = first_lanes(row.size - i);
  return select(mask, load(row.values + i, mask), splat(fill));
}

// Fills row.maxima; says whether all values are below +infinity and none is NaN. `marks` is a float
// per segment.
static bool find_maxima(const Row& row, ThreadPool* pool, float* marks) {
  const Vec infinity = splat(__builtin_inff()), lowest = splat(-__builtin_inff());
  for_segments(pool, row.size, [&](int segment, int begin, int end) {
    Vec bad = zero();
    for (int block = begin; block < end; block += kBlock) {
      Vec largest = lowest;
      for (int i = block; i < block + kBlock; i += kLanes) {
        const Vec value = load_or(row, i, -__builtin_inff());
        bad = select(value < infinity, bad, splat(1.0f));
        largest = max(value, largest);
      }
      row.maxima[block / kBlock] = reduce_max(largest);
    }
    marks[segment] = reduce_max(bad);
  });
  for (int segment = 0; segment < row.num_segments(); ++segment) {
    if (marks[segment] != 0.0f) return false;
  }
  return true;
}

// The lowest id of the largest value.
HR_INLINE int first_largest(const Row& row) {
  int best = 0;
  for (int block = 1; block < row.num_blocks(); ++block) {
    if (row.maxima[block] > row.maxima[best]) best = block;
  }
  int id = best * kBlock;
  while (row.values[id] != row.maxima[best]) ++id;
  return id;
}

// sum of e^((value - shift) * factor); per segment in sixteen float lanes, segments in double.
static double sum_exp(const Row& row, float shift, float factor, ThreadPool* pool, float* sums) {
  for_segments(pool, row.size, [&](int segment, int begin, int end) {
    Vec sum = zero();
    for (int i = begin; i < end; i += kLanes) {
      sum = sum + exp((load_or(row, i, -__builtin_inff()) - splat(shift)) * splat(factor));
    }
    sums[segment] = reduce_add(sum);
  });
  double total = 0.0;
  for (int segment = 0; segment < row.num_segments(); ++segment) total += double{sums[segment]};
  return total;
}

// 1 + how many tokens come before `id` in the order (value descending, id ascending).
static int rank_of(const Row& row, int id, ThreadPool* pool, float* counts) {
  const Vec value = splat(row.values[id]), one = splat(1.0f);
  for_segments(pool, row.size, [&](int segment, int begin, int end) {
    const Row part{row.values, end, nullptr};  // loads beyond the segment are of the next one
    Vec count = zero();
    int i = begin;
    for (; i + kLanes <= end && i + kLanes <= id; i += kLanes) {  // all before id: equals count
      count = count + select(load(row.values + i) < value, zero(), one);
    }
    float rest = 0.0f;
    for (; i < end && i <= id; ++i) rest += i < id && row.values[i] >= row.values[id];
    for (; i < end; i += kLanes) {
      count = count + select(value < load_or(part, i, -__builtin_inff()), one, zero());
    }
    counts[segment] = reduce_add(count) + rest;
  });
  int rank = 1;
  for (int segment = 0; segment < row.num_segments(); ++segment) {
    rank += static_cast<int>(counts[segment]);
  }
  return rank;
}

// What turns a logit into the number that noise is added to.
struct Scaling {
  float largest;  // max z
  float inverse;  // 1 / temperature

  HR_INLINE float operator()(float z) const { return (z - largest) * inverse; }
  HR_INLINE Vec operator()(Vec z) const { return (z - splat(largest)) * splat(inverse); }
};

// Where the kept tokens end in the order (scaled value descending, id ascending): at this one.
struct Cut {
  float value;
  int32_t id;
};

inline constexpr Cut kKeepAll = {-__FLT_MAX__, INT32_MAX};

}  // namespace headrace::HR_ISA
