// Gumbel-max: the token whose scaled value and noise add up to the most.
#pragma once

#include "sampling/narrow.h"

namespace headrace::HR_ISA {

struct Draw {
  float value;
  int32_t id;
};

HR_INLINE float first_lane(Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

// How small 1 - u, in units of 2^-23, must be for a token that lies `distance` below the bar to
// reach it. From -log(-log u) <= -log(1 - u): noise of at least d needs 1 - u <= e^-d. The factor
// leaves room for rounding.
HR_INLINE Vec needed_rarity(float distance) {
  return splat(first_lane(exp(splat(distance > 0.0f ? -distance : 0.0f))) * 0x1.01p23f);
}

// The best of one block if it beats `best`. `bar` is a value that some token is known to reach.
HR_INLINE void draw_from_block(const Row& row, int block, const Scaling& scaling, const Band& band,
                               uint64_t key, float bar, Draw* best) {
  const Vec lowest = splat(-__builtin_inff());
  const Vec rarity = needed_rarity(bar - scaling(row.maxima[block]));
  for (int i = block * kBlock; i < (block + 1) * kBlock && i < row.size; i += kLanes) {
    const Words hash = hash_tokens(key, counting(i));
    if (!any(rarity_of(hash) < rarity)) continue;
    const Vec scaled = scaling(load_or(row, i, -__builtin_inff()));
    const Vec kept = select(scaled < splat(band.last.value), lowest,
                            select(splat(band.first.value) < scaled, lowest, scaled));
    const Vec value = kept + gumbel(hash);
    if (!any(splat(best->value) < value)) continue;
    float values[kLanes], tokens[kLanes];
    store(values, value);
    store(tokens, scaled);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (tokens[lane] == band.last.value && i + lane > band.last.id) continue;
      if (tokens[lane] == band.first.value && i + lane < band.first.id) continue;
      if (values[lane] > best->value) *best = {values[lane], i + lane};
    }
  }
}

// argmax of scaled value + noise over the tokens of the band, the lowest id among equals. Blocks
// and Vecs that could not win with the largest noise, or with the noise that their hash allows, are
// skipped: the result is the same, most of the work is not done. `draws` has one entry per segment.
static int draw_token(const Row& row, const Scaling& scaling, const Band& band, uint64_t key,
                      ThreadPool* pool, Draw* draws) {
  const int likeliest = first_largest(row);
  // Its scaled value is 0.
  const float floor =
      band.has(0.0f, likeliest)
          ? first_lane(gumbel(hash_tokens(key, words(static_cast<uint32_t>(likeliest)))))
          : -__builtin_inff();
  for_segments(pool, row.size, [&](int segment, int begin, int end) {
    Draw best{-__builtin_inff(), -1};
    for (int block = begin / kBlock; block * kBlock < end; ++block) {
      const float bar = best.value > floor ? best.value : floor;
      const float top = scaling(row.maxima[block]);
      if (top + kLargestNoise < bar || top < band.last.value) continue;
      draw_from_block(row, block, scaling, band, key, bar, &best);
    }
    draws[segment] = best;
  });
  Draw best{-__builtin_inff(), -1};
  for (int segment = 0; segment < row.num_segments(); ++segment) {
    if (draws[segment].value > best.value) best = draws[segment];
  }
  return best.id;
}

}  // namespace headrace::HR_ISA
