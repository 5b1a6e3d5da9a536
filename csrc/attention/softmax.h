// One row's softmax over a chunk of keys, and how chunks are merged.
//
// Online softmax (Milakov and Gimelshein, 2018): a chunk gives its largest score m, the sum l of
// e^(score - m) and the values a weighted with these; two such triples merge into one of all keys.
#pragma once

#include "attention/tile.h"

namespace headrace::HR_ISA {

// What one layer does to a score.
struct Scoring {
  float scale;
  float soft_cap;  // 0 without
};

// Scores of [begin, end) tiles become weights e^(score - m), in place; keys outside `visible` get
// 0. Stores m and the sum of the weights: lane k adds the keys with index k modulo 16, ascending,
// the lanes are added in the tree of reduce_add. With `tile_sums` also the sum of each tile.
static void soften_row(float* scores, const KeyTile* tiles, int begin, int end, KeyRange visible,
                       const Scoring& scoring, float* max_out, float* sum_out, float* tile_sums) {
  const Vec lowest = splat(-__builtin_inff());
  const Vec scale = splat(scoring.scale);
  const Vec cap = splat(scoring.soft_cap), inverse_cap = splat(1.0f / scoring.soft_cap);
  Vec largest = lowest;
  for (int j = begin; j < end; ++j) {
    Vec score = load(scores + j * kKeyTile) * scale;
    if (scoring.soft_cap > 0.0f) score = cap * tanh(score * inverse_cap);
    const int64_t first = tiles[j].first;
    if (visible.begin > first) {
      score = select(first_lanes(static_cast<int>(visible.begin - first)), lowest, score);
    }
    if (visible.end < first + kKeyTile) {
      score = select(first_lanes(static_cast<int>(visible.end - first)), score, lowest);
    }
    store(scores + j * kKeyTile, score);
    largest = max(largest, score);
  }
  const float row_max = reduce_max(largest);
  const Vec shift = splat(row_max);
  Vec sum = zero();
  for (int j = begin; j < end; ++j) {
    const Vec weight = exp(load(scores + j * kKeyTile) - shift);
    store(scores + j * kKeyTile, weight);
    sum = sum + weight;
    if (tile_sums != nullptr) tile_sums[j] = reduce_add(weight);
  }
  *max_out = row_max;
  *sum_out = reduce_add(sum);
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
  const Vec keep = exp(splat(*state.max - top)), add = exp(splat(max_in - top));
  for (int i = 0; i < width; i += kLanes) {
    store(state.values + i, fma(load(state.values + i), keep, load(values + i) * add));
  }
  float sums[kLanes];
  store(sums, fma(splat(*state.sum), keep, splat(sum_in) * add));
  *state.sum = sums[0];
  *state.max = top;
}

}  // namespace headrace::HR_ISA
