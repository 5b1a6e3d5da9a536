// The inner loops of attention: scores of a few rows with tiles of sixteen keys, and weighted
// values.
//
// A row is one query head of one token. Every score is one chain over D ascending and every output
// element one chain over keys ascending (in the steps and units of the dtype, formats.h), whatever
// the number of rows that a call takes together, so a row's result does not depend on its company.
#pragma once

#include "attention/formats.h"

namespace headrace::HR_ISA {

// Register tile: rows by Vecs. AVX-512 has 32 registers: 6 * 4 sums, 4 operands, 1 broadcast. With
// AVX2 a Vec is two of 16 registers: 6 * 2 sums, 2 operands, 1 broadcast. Plain C++ keeps its sums
// in the L1 cache; six rows make good for widening a key or value in scalar code.
inline constexpr int kTileRows = 6;
#if defined(HR_ISA_AVX512)
inline constexpr int kTileVecs = 4;
#else
inline constexpr int kTileVecs = 1;
#endif

inline constexpr int kTilesPerChunk = kAttentionChunk / kKeyTile;
// Floats from one row of scores to the next: off the power of two, so that rows use different sets.
inline constexpr int kScoreStride = kAttentionChunk + 16;

// Sixteen tokens that lie together: where they are, and the key index of the first.
struct KeyTile {
  const std::byte* data;  // see kv_cache.h
  int64_t first;
};

// Tiles of one chunk.
struct TileList {
  int count = 0;
  KeyTile tiles[kTilesPerChunk];
};

// A half-open range of key indices.
struct KeyRange {
  int64_t begin, end;
};

// Brings part `index` of `parts` of a range of memory into the L2 cache.
HR_INLINE void prefetch_part(const std::byte* p, int64_t bytes, int index, int parts) {
  const int64_t lines = bytes / kAlignment;
  for (int64_t i = lines * index / parts; i < lines * (index + 1) / parts; ++i) {
    __builtin_prefetch(p + i * kAlignment, 0, 2);
  }
}

// What a chunk needs next, in parts of its tiles: bytes [begin, end) of each.
struct Ahead {
  int64_t begin = 0, end = 0;
};

// Scores of R rows with N tiles of sixteen keys: steps of keys ascending. `queries` is [steps, R].
// With each step of keys one of `ahead` is brought in too, as far as they go.
template <typename F, int R, int N>
HR_INLINE void score_tiles(const typename F::Query* queries, const QueryScale* scales, int steps,
                           const KVTileShape& shape, const KeyTile* tiles, const Ahead& ahead,
                           float* scores) {
  typename F::Sum sums[R][N];
  const std::byte* keys[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    keys[n] = tiles[n].data;
    if constexpr (F::kIsExact) {
      if (ahead.end != 0) __builtin_prefetch(keys[n] + shape.value_scales, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][n] = F::start(scales[r]);
  }
  const int64_t fetched = (ahead.end - ahead.begin) / F::kStepBytes;
  for (int i = 0; i < steps; ++i, queries += R) {
    decltype(F::key(keys[0])) key[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      key[n] = F::key(keys[n] + i * F::kStepBytes);
      if (i < fetched) __builtin_prefetch(keys[n] + ahead.begin + i * F::kStepBytes, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto query = F::splat_query(queries + r);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] = F::score(key[n], query, sums[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      store(scores + r * kScoreStride + n * kKeyTile, F::finish(sums[r][n], tiles[n].data, shape));
    }
  }
}

// Scores of R rows with tiles [begin, end).
template <typename F, int R>
static void score_rows(const typename F::Query* queries, const QueryScale* scales, int steps,
                       const KVTileShape& shape, const KeyTile* tiles, int begin, int end,
                       const Ahead& ahead, float* scores) {
  int j = begin;
  for (; j + kTileVecs <= end; j += kTileVecs) {
    score_tiles<F, R, kTileVecs>(queries, scales, steps, shape, tiles + j, ahead,
                                 scores + j * kKeyTile);
  }
  for (; j < end; ++j) {
    score_tiles<F, R, 1>(queries, scales, steps, shape, tiles + j, ahead, scores + j * kKeyTile);
  }
}

// What weigh_rows reads and writes. Rows of weights are kScoreStride floats apart.
struct WeighJob {
  const KVTileShape& shape;
  int size;  // D
  const KeyTile* tiles;
  int begin, end;           // tiles to take
  KeyRange visible;         // keys of them that count
  const float* weights;     // row 0
  const KeyTile* upcoming;  // [begin .. end) tiles whose keys are needed next, or null
  int num_upcoming;
  float* out;  // [R, stride]
  int stride;
};

template <typename F, int R, int N>
HR_INLINE void weigh_unit(const std::byte* values, const typename F::Weight* weights,
                          typename F::Sum (&sums)[R][N], bool is_whole, bool has_first,
                          bool has_second) {
  constexpr int kWeightStride = kScoreStride * 4 / static_cast<int>(sizeof(typename F::Weight));
  decltype(F::value(values)) value[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const std::byte* p = values + n * F::kUnit * kLanes * F::kValueBytes;
    if constexpr (F::kIsExact || F::kUnit == 1) {
      value[n] = F::value(p);
    } else {
      value[n] = is_whole ? F::value(p) : F::partial_value(p, has_first, has_second);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const auto weight = F::splat_weight(weights + r * kWeightStride);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[r][n] = F::weigh(value[n], weight, sums[r][n]);
  }
}

// sums[r, 0 .. 16 N) += weights[r, key] * values[key], units of keys ascending. Of floats only
// visible keys are multiplied: a key that a row may not see may hold NaN, and memory that no token
// wrote anything. (Codes cannot, and the weight of such a key is 0.)
template <typename F, int R, int N>
HR_INLINE void weigh_tiles(const WeighJob& job, int column, typename F::Sum (&sums)[R][N]) {
  constexpr int kUnits = kKeyTile / F::kUnit;
  const int64_t unit_bytes = int64_t{job.size} * F::kUnit * F::kValueBytes;
  for (int j = job.begin; j < job.end; ++j) {
    const int64_t first = job.tiles[j].first;
    int k0 = 0, k1 = kKeyTile;
    if constexpr (!F::kIsExact) {
      if (job.visible.begin > first) k0 = static_cast<int>(job.visible.begin - first);
      if (job.visible.end < first + kKeyTile) k1 = static_cast<int>(job.visible.end - first);
    }
    const std::byte* values =
        job.tiles[j].data + job.shape.values + column * F::kUnit * F::kValueBytes;
    const auto* weights = reinterpret_cast<const typename F::Weight*>(job.weights) + j * kKeyTile;
    const std::byte* next = nullptr;
    if (column == 0 && j < job.num_upcoming) next = job.upcoming[j].data;
    if (k0 == 0 && k1 == kKeyTile) {
      for (int u = 0; u < kUnits; ++u) {
        if (next != nullptr) prefetch_part(next, job.shape.values, u, kUnits);
        weigh_unit<F, R, N>(values + u * unit_bytes, weights + u * F::kUnit, sums, true, true,
                            true);
      }
      continue;
    }
    if (next != nullptr) prefetch_part(next, job.shape.values, 0, 1);
    for (int u = k0 / F::kUnit; u * F::kUnit < k1; ++u) {
      const bool has_first = u * F::kUnit >= k0, has_second = u * F::kUnit + 1 < k1;
      weigh_unit<F, R, N>(values + u * unit_bytes, weights + u * F::kUnit, sums,
                          has_first && has_second, has_first, has_second);
    }
  }
}

// Sixteen N columns. `factors`, of exact sums only: what a row's sum is multiplied with.
template <typename F, int R, int N>
HR_INLINE void weigh_columns(const WeighJob& job, int column, const float* factors) {
  typename F::Sum sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      if constexpr (F::kIsExact) {
        sums[r][n] = splat_int(0);
      } else {
        sums[r][n] = load(job.out + r * job.stride + column + n * kLanes);
      }
    }
  }
  weigh_tiles<F, R, N>(job, column, sums);
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      float* out = job.out + r * job.stride + column + n * kLanes;
      if constexpr (F::kIsExact) {
        store(out, to_float(sums[r][n]) * splat(factors[r]));
      } else {
        store(out, sums[r][n]);
      }
    }
  }
}

// All columns: D rounded up to 16. Floats are added to what is in `out`, exact sums replace it.
template <typename F, int R>
static void weigh_rows(const WeighJob& job, const float* factors) {
  int column = 0;
  for (; column + kTileVecs * kLanes <= job.stride; column += kTileVecs * kLanes) {
    weigh_columns<F, R, kTileVecs>(job, column, factors);
  }
  for (; column < job.stride; column += kLanes) weigh_columns<F, R, 1>(job, column, factors);
}

}  // namespace headrace::HR_ISA
