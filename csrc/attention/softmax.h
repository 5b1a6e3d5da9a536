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
  return scale_by_power(p, n);
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

// Calls tile.operator()<is_whole>(j) for the tiles of a view, ascending: all of whose keys are
// visible, or some. Of the latter there are at most one at either end.
template <typename Tile>
HR_INLINE void for_each_tile(const KeyTile* tiles, const RowView& view, Tile tile) {
  const KeyRange visible = view.visible;
  int j = view.begin, whole_end = view.end;
  for (; j < view.end && tiles[j].first < visible.begin; ++j) tile.template operator()<false>(j);
  while (whole_end > j && tiles[whole_end - 1].first + kKeyTile > visible.end) --whole_end;
  for (; j < whole_end; ++j) tile.template operator()<true>(j);
  for (; j < view.end; ++j) tile.template operator()<false>(j);
}

// Scores become cap * tanh(score * scale / cap), in place.
HR_INLINE void cap_scores(float* scores, const RowView& view, float scale, float cap) {
  for (int j = view.begin; j < view.end; ++j) {
    float* score = scores + j * kKeyTile;
    store(score, splat(cap) * tanh(load(score) * splat(scale / cap)));
  }
}

// Of the visible keys.
HR_INLINE float largest_score(const float* scores, const KeyTile* tiles, const RowView& view) {
  const Vec lowest = splat(-__builtin_inff());
  Vec largest = lowest;
  for_each_tile(tiles, view, [&]<bool is_whole>(int j) {
    Vec score = load(scores + j * kKeyTile);
    if (!is_whole) score = hide(score, lowest, tiles[j].first, view.visible);
    largest = max(largest, score);
  });
  return reduce_max(largest);
}

// Weights with their tokens' value scales become codes of 16 bits in place, 0 in tiles of [begin,
// end) that the row does not see; returns what a sum of codes is worth. A fault in a weight or
// scale is one in that factor. `largest` and `sum` are of the weights with their scales.
template <typename F>
HR_INLINE float quantize_weights(float* weights, const RowView& view, int begin, int end,
                                 Vec largest, Vec sum) {
  const float magnitude = reduce_max_magnitude(largest);
  auto* codes = reinterpret_cast<int16_t*>(weights);
  if (!(magnitude >= kSmallestKV && magnitude <= 3.402823466e38f)) {
    for (int j = begin; j < end; ++j) store_int16(codes + j * kKeyTile, zero());
    return magnitude < kSmallestKV ? 0.0f : __builtin_nanf("");
  }
  // What a code is worth: the smallest that both bounds allow.
  float unit = magnitude / F::kMaxWeight;
  if constexpr (F::kMaxWeightSum < kAttentionChunk * F::kMaxWeight) {
    const float shared = reduce_add(sum) / F::kMaxWeightSum;
    unit = shared > unit ? shared : unit;
  }
  const Vec inverse = splat(1.0f / unit);
  for (int j = view.begin; j < view.end; ++j) {
    store_int16(codes + j * kKeyTile, load(weights + j * kKeyTile) * inverse);
  }
  for (int j = begin; j < view.begin; ++j) store_int16(codes + j * kKeyTile, zero());
  for (int j = view.end; j < end; ++j) store_int16(codes + j * kKeyTile, zero());
  return unit;
}

// Scores of a row become weights 2^(score - m), in place and in the format's type; keys that the
// row does not see get 0. The sum: lane k adds the keys with index k modulo 16, ascending, the
// lanes are added in the tree of reduce_add. With `tile_sums` also the sum of each tile. [begin,
// end) are the tiles that the row's register tile takes. This row of `num_rows` brings in its share
// of what is `ahead`.
template <typename F>
static RowSums soften_row(float* scores, const KeyTile* tiles, const RowView& view, int begin,
                          int end, const Scoring& scoring, float query_scale,
                          const KVTileShape& shape, float* tile_sums, const Ahead& ahead, int row,
                          int num_rows) {
  constexpr float kLog2E = 1.44269504f;
  const bool is_capped = scoring.soft_cap > 0.0f;
  if (is_capped) cap_scores(scores, view, query_scale * scoring.scale, scoring.soft_cap);
  const float factor = is_capped ? kLog2E : query_scale * scoring.scale * kLog2E;
  // A product with a factor that is not below 0 keeps the order of the scores.
  RowSums result{largest_score(scores, tiles, view) * factor, 0.0f, 1.0f};
  const Vec scale = splat(factor), shift = splat(result.max);
  Vec sum = zero(), scaled_sum = zero(), largest = zero();
  for_each_tile(tiles, view, [&]<bool is_whole>(int j) {
    const int64_t first = tiles[j].first;
    if (ahead.begin < ahead.end) {
      prefetch_part(tiles[j].data + ahead.begin, ahead.end - ahead.begin, row, num_rows);
    }
    Vec weight = power_of_two_below(load(scores + j * kKeyTile) * scale - shift);
    if (!is_whole) weight = hide(weight, zero(), first, view.visible);
    sum = sum + weight;
    if (tile_sums != nullptr) tile_sums[j] = reduce_add(weight);
    if constexpr (F::kIsExact) {
      weight = weight * F::value_scales(tiles[j].data, shape);
      if (!is_whole) weight = hide(weight, zero(), first, view.visible);
      largest = max_magnitude(largest, weight);
      scaled_sum = scaled_sum + weight;
      store(scores + j * kKeyTile, weight);
    } else {
      F::store_weights(reinterpret_cast<typename F::Weight*>(scores) + j * kKeyTile, weight);
    }
  });
  result.sum = reduce_add(sum);
  if constexpr (F::kIsExact) {
    result.factor = quantize_weights<F>(scores, view, begin, end, largest, scaled_sum);
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
