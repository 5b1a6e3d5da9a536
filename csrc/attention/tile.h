// The inner loops of attention: scores of a few rows with tiles of sixteen keys, and weighted
// values.
//
// A row is one query head of one token. Every score is one chain over D ascending and every output
// element one chain over keys ascending, whatever the number of rows that a call takes together, so
// a row's result does not depend on its company.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_cache.h"
#include "base/simd.h"

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

// Sixteen keys that lie together: where they are, and the index of the first.
struct KeyTile {
  const std::byte* keys;    // [D, 16]
  const std::byte* values;  // [16, D]
  int64_t first;
};

// How the cache's dtypes are read.
struct ReadF32 {
  using Element = float;
  static HR_INLINE Vec read(const Element* p) { return load(p); }
};
struct ReadF16 {
  using Element = uint16_t;
  static HR_INLINE Vec read(const Element* p) { return load_f16(p); }
};
struct ReadBF16 {
  using Element = uint16_t;
  static HR_INLINE Vec read(const Element* p) { return load_bf16(p); }
};

// scores[r, 16 n ..] = queries[:, r] . keys of tile n, for R rows and N tiles. queries is [D, R].
template <typename Read, int R, int N>
HR_INLINE void score_tiles(const float* queries, int size, const KeyTile* tiles, float* scores) {
  using Element = typename Read::Element;
  Vec sums[R][N];
  const Element* keys[N];
  for (int n = 0; n < N; ++n) {
    keys[n] = reinterpret_cast<const Element*>(tiles[n].keys);
    for (int r = 0; r < R; ++r) sums[r][n] = zero();
  }
  for (int d = 0; d < size; ++d, queries += R) {
    Vec key[N];
    for (int n = 0; n < N; ++n) key[n] = Read::read(keys[n] + d * kKeyTile);
    for (int r = 0; r < R; ++r) {
      const Vec query = splat(queries[r]);
      for (int n = 0; n < N; ++n) sums[r][n] = fma(query, key[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) store(scores + r * kScoreStride + n * kKeyTile, sums[r][n]);
  }
}

// Scores of R rows with tiles [begin, end).
template <typename Read, int R>
static void score_rows(const float* queries, int size, const KeyTile* tiles, int begin, int end,
                       float* scores) {
  int j = begin;
  for (; j + kTileVecs <= end; j += kTileVecs) {
    score_tiles<Read, R, kTileVecs>(queries, size, tiles + j, scores + j * kKeyTile);
  }
  for (; j < end; ++j) {
    score_tiles<Read, R, 1>(queries, size, tiles + j, scores + j * kKeyTile);
  }
}

// A half-open range of key indices.
struct KeyRange {
  int64_t begin, end;
};

// sums[r, 0 .. 16 N) += weights[r, key] * values[key], keys of tiles [begin, end) ascending, of
// them only those in `visible`. `column` is the first of the N * 16 columns.
template <typename Read, int R, int N>
HR_INLINE void weigh_tiles(const float* weights, const KeyTile* tiles, int begin, int end,
                           KeyRange visible, int size, int column, float* out, int out_stride) {
  using Element = typename Read::Element;
  Vec sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n] = load(out + r * out_stride + n * kLanes);
  }
  for (int j = begin; j < end; ++j) {
    const int64_t first = tiles[j].first;
    const int k0 = visible.begin > first ? static_cast<int>(visible.begin - first) : 0;
    const int k1 =
        visible.end < first + kKeyTile ? static_cast<int>(visible.end - first) : kKeyTile;
    const Element* value = reinterpret_cast<const Element*>(tiles[j].values) + k0 * size + column;
    const float* weight = weights + j * kKeyTile + k0;
    for (int k = k0; k < k1; ++k, value += size, ++weight) {
      Vec row[N];
      for (int n = 0; n < N; ++n) row[n] = Read::read(value + n * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec w = splat(weight[r * kScoreStride]);
        for (int n = 0; n < N; ++n) sums[r][n] = fma(w, row[n], sums[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) store(out + r * out_stride + n * kLanes, sums[r][n]);
  }
}

// The same for all columns; out is [R, out_stride] with D rounded up to 16 columns. Keys outside
// `visible` are not read: memory that no token wrote may hold anything.
template <typename Read, int R>
static void weigh_rows(const float* weights, const KeyTile* tiles, int begin, int end,
                       KeyRange visible, int size, float* out, int out_stride) {
  int column = 0;
  for (; column + kTileVecs * kLanes <= out_stride; column += kTileVecs * kLanes) {
    weigh_tiles<Read, R, kTileVecs>(weights, tiles, begin, end, visible, size, column, out + column,
                                    out_stride);
  }
  for (; column < out_stride; column += kLanes) {
    weigh_tiles<Read, R, 1>(weights, tiles, begin, end, visible, size, column, out + column,
                            out_stride);
  }
}

}  // namespace headrace::HR_ISA
