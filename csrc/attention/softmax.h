// One row's softmax over a chunk of keys, and how chunks are merged.
//
// Online softmax (Milakov and Gimelshein, 2018): a chunk gives its largest score m, the sum l of
// e^(score - m) and the values a weighted with these; two such triples merge into one of all keys.
// Scores are kept in units of log2(e), so that a weight is a power of two.
#pragma once

#include "attention/tile.h"

namespace headrace::HR_ISA {

// 2^x for x <= 0 with a relative error below 2^-22; below -126 it is 2^-126. NaN for NaN. The
// polynomial is a fit of 2^x on [-1/2, 1/2] with the smallest largest relative error, and 1 at 0.
HR_INLINE Vec power_of_two_below(Vec x) {
  const Vec clamped = max(splat(-126.0f), x);
  const Vec n = round(clamped);
  const Vec f = clamped - n;
  Vec p = splat(0.0013264726690356435f);
  p = fma(p, f, splat(0.009671512677719004f));
  p = fma(p, f, splat(0.05550733744934834f));
  p = fma(p, f, splat(0.240222420845453f));
  p = fma(p, f, splat(0.6931469775979976f));
  p = fma(p, f, splat(1.0f));
  return p * power_of_two(n);
}

// What one layer does to a score.
struct Scoring {
  float scale;
  float soft_cap;  // 0 without
};

// A row's share of the tiles of a chunk.
struct RowView {
  KeyRange visible;
  int begin, end;  // tiles that hold visible keys
};

// What a chunk's softmax leaves of one row, beside its weights.
struct RowSums {
  float max, sum;
  float factor;  // exact formats: of weights and value scales
};

// Keys of a tile that the row does not see get `hidden`.
HR_INLINE Vec hide(Vec x, Vec hidden, int64_t first, KeyRange visible) {
  if (visible.begin > first) {
    x = select(first_lanes(static_cast<int>(visible.begin - first)), hidden, x);
  }
  if (visible.end < first + kKeyTile) {
    x = select(first_lanes(static_cast<int>(visible.end - first)), x, hidden);
  }
  return x;
}

// Scales and caps the scores in place; returns the largest.
HR_INLINE float scale_scores(float* scores, const KeyTile* tiles, const RowView& view,
                             const Scoring& scoring, float query_scale) {
  constexpr float kLog2E = 1.44269504f;
  const float cap = scoring.soft_cap;
  const Vec lowest = splat(-__builtin_inff());
  const Vec scale =
      splat(cap > 0.0f ? query_scale * scoring.scale / cap : query_scale * scoring.scale * kLog2E);
  Vec largest = lowest;
  for (int j = view.begin; j < view.end; ++j) {
    Vec score = load(scores + j * kKeyTile) * scale;
    if (cap > 0.0f) score = splat(cap * kLog2E) * tanh(score);
    score = hide(score, lowest, tiles[j].first, view.visible);
    store(scores + j * kKeyTile, score);
    largest = max(largest, score);
  }
  return reduce_max(largest);
}

// Weights with their tokens' value scales become codes of 16 bits in place, 0 in tiles of [begin,
// end) that the row does not see; returns what a sum of codes is worth. A fault in a weight or
// scale is one in that factor.
HR_INLINE float quantize_weights(float* weights, const RowView& view, int begin, int end,
                                 Vec largest) {
  const float magnitude = reduce_max_magnitude(largest);
  const bool is_usable = magnitude >= kSmallestKV && magnitude <= 3.402823466e38f;
  const Vec inverse = splat(is_usable ? Int8::kMaxWeight / magnitude : 0.0f);
  auto* codes = reinterpret_cast<int16_t*>(weights);
  for (int j = view.begin; j < view.end; ++j) {
    const Vec weight = load(weights + j * kKeyTile);
    store_int16(codes + j * kKeyTile, is_usable ? round(weight * inverse) : zero());
  }
  for (int j = begin; j < view.begin; ++j) store_int16(codes + j * kKeyTile, zero());
  for (int j = view.end; j < end; ++j) store_int16(codes + j * kKeyTile, zero());
  if (magnitude < kSmallestKV) return 0.0f;
  return is_usable ? magnitude / Int8::kMaxWeight : __builtin_nanf("");
}

// Scores of a row become weights 2^(score - m), in place and in the format's type; keys that the
// row does not see get 0. The sum: lane k adds the keys with index k modulo 16, ascending, the
// lanes are added in the tree of reduce_add. With `tile_sums` also the sum of each tile. [begin,
// end) are the tiles that the row's register tile takes.
template <typename F>
static RowSums soften_row(float* scores, const KeyTile* tiles, const RowView& view, int begin,
                          int end, const Scoring& scoring, float query_scale,
                          const KVTileShape& shape, float* tile_sums) {
  RowSums result{scale_scores(scores, tiles, view, scoring, query_scale), 0.0f, 1.0f};
  const Vec shift = splat(result.max);
  Vec sum = zero(), largest = zero();
  for (int j = view.begin; j < view.end; ++j) {
    const int64_t first = tiles[j].first;
    const bool is_whole = first >= view.visible.begin && first + kKeyTile <= view.visible.end;
    Vec weight = power_of_two_below(load(scores + j * kKeyTile) - shift);
    if (!is_whole) weight = hide(weight, zero(), first, view.visible);
    sum = sum + weight;
    if (tile_sums != nullptr) tile_sums[j] = reduce_add(weight);
    if constexpr (F::kIsExact) {
      weight = weight * F::value_scales(tiles[j].data, shape);
      if (!is_whole) weight = hide(weight, zero(), first, view.visible);
      largest = max_magnitude(largest, weight);
      store(scores + j * kKeyTile, weight);
    } else {
      F::store_weights(reinterpret_cast<typename F::Weight*>(scores) + j * kKeyTile, weight);
    }
  }
  result.sum = reduce_add(sum);
  if constexpr (F::kIsExact) {
    result.factor = quantize_weights(scores, view, begin, end, largest);
  }
  return result;
}

// A row's result over the keys so far: m, l and a [stride]. l < 0: no key yet.
struct RowState {
  float* max;
  float* sum;
  float* values;
};

// state = state and chunk. The order of merges is part of the result: chunks ascending.
static void merge_chunk(RowState state, float max_in, float sum_in, const float* values,
                        int width) {
  if (*state.sum < 0.0f) {
    *state.max = max_in;
    *state.sum = sum_in;
    for (int i = 0; i < width; i += kLanes) store(state.values + i, load(values + i));
    return;
  }
  const float top = *state.max > max_in ? *state.max : max_in;
  const Vec keep = power_of_two_below(splat(*state.max - top));
  const Vec add = power_of_two_below(splat(max_in - top));
  for (int i = 0; i < width; i += kLanes) {
    store(state.values + i, fma(load(state.values + i), keep, load(values + i) * add));
  }
  float sums[kLanes];
  store(sums, fma(splat(*state.sum), keep, splat(sum_in) * add));
  *state.sum = sums[0];
  *state.max = top;
}

}  // namespace headrace::HR_ISA
