// How each dtype of the cache is multiplied: what a query becomes, what sixteen keys and sixteen
// elements of values are in registers, and what a row's weights become.
//
// A key comes in steps: one element (f32, f16), two (bf16, int16), four (int8); a value in units:
// one token or two. `kHasBf16Dot` is true in the set that multiplies pairs of bf16: there queries
// and weights are rounded to bf16 too; elsewhere they stay float32.
#pragma once

#include "attention/words.h"
#include "base/kv_cache.h"
#include "base/kv_token.h"

namespace headrace::HR_ISA {

#if defined(__AVX512BF16__)
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif

// What codes need of a query beside its own: score = float(dot + bias) * key scale * scale.
struct QueryScale {
  float scale = 1.0f;
  int32_t bias = 0;
};

// A float dtype that is multiplied element by element.
template <typename Element>
struct FloatFormat {
  static constexpr bool kIsExact = false;  // sums are of floats, so their order matters
  static constexpr int kUnit = 1;          // tokens per unit of values
  static constexpr int kKeyStep = 1;       // elements per step of keys
  static constexpr int kStepBytes = kKeyTile * static_cast<int>(sizeof(Element));
  static constexpr int kValueBytes = static_cast<int>(sizeof(Element));
  using Query = float;
  using Weight = float;
  using Sum = Vec;

  static HR_INLINE Sum start(const QueryScale&) { return zero(); }
  static HR_INLINE Vec key(const std::byte* p) { return read(p); }
  static HR_INLINE Vec splat_query(const Query* p) { return splat(*p); }
  static HR_INLINE Sum score(Vec key, Vec query, Sum sum) { return fma(query, key, sum); }
  static HR_INLINE Vec finish(Sum sum, const std::byte*, const KVTileShape&) { return sum; }
  static HR_INLINE Vec value(const std::byte* p) { return read(p); }
  static HR_INLINE Vec partial_value(const std::byte* p, bool, bool) { return read(p); }
  static HR_INLINE Vec splat_weight(const Weight* p) { return splat(*p); }
  static HR_INLINE Sum weigh(Vec value, Vec weight, Sum sum) { return fma(weight, value, sum); }
  static HR_INLINE void store_weights(Weight* p, Vec weights) { store(p, weights); }

 private:
  static HR_INLINE Vec read(const std::byte* p) {
    if constexpr (sizeof(Element) == 4) {
      return load(reinterpret_cast<const float*>(p));
    } else {
      return load_f16(reinterpret_cast<const uint16_t*>(p));
    }
  }
};
using F32 = FloatFormat<float>;
using F16 = FloatFormat<uint16_t>;

// bf16 widened to floats: two chained multiplications a pair.
struct WideBF16 {
  static constexpr bool kIsExact = false;
  static constexpr int kUnit = 2, kKeyStep = 2, kStepBytes = 64, kValueBytes = 2;
  struct Query {
    float first, second;
  };
  using Weight = float;
  using Sum = Vec;

  static HR_INLINE Sum start(const QueryScale&) { return zero(); }
  static HR_INLINE VecPair key(const std::byte* p) { return load_pairs(p); }
  static HR_INLINE VecPair splat_query(const Query* p) {
    return {splat(p->first), splat(p->second)};
  }
  static HR_INLINE Sum score(const VecPair& key, const VecPair& query, Sum sum) {
    return fma(query.second, key.second, fma(query.first, key.first, sum));
  }
  static HR_INLINE Vec finish(Sum sum, const std::byte*, const KVTileShape&) { return sum; }
  static HR_INLINE VecPair value(const std::byte* p) { return load_pairs(p); }
  static HR_INLINE VecPair partial_value(const std::byte* p, bool has_first, bool has_second) {
    const VecPair both = load_pairs(p);
    return {has_first ? both.first : zero(), has_second ? both.second : zero()};
  }
  static HR_INLINE VecPair splat_weight(const Weight* p) { return {splat(p[0]), splat(p[1])}; }
  static HR_INLINE Sum weigh(const VecPair& value, const VecPair& weight, Sum sum) {
    return fma(weight.second, value.second, fma(weight.first, value.first, sum));
  }
  static HR_INLINE void store_weights(Weight* p, Vec weights) { store(p, weights); }
};

#if defined(__AVX512BF16__)
struct DotBF16 {
  static constexpr bool kIsExact = false;
  static constexpr int kUnit = 2, kKeyStep = 2, kStepBytes = 64, kValueBytes = 2;
  using Query = uint32_t;  // two bf16
  using Weight = uint16_t;
  using Sum = Vec;

  static HR_INLINE Sum start(const QueryScale&) { return zero(); }
  static HR_INLINE __m512i key(const std::byte* p) { return _mm512_loadu_si512(p); }
  static HR_INLINE __m512i splat_query(const Query* p) {
    return _mm512_set1_epi32(static_cast<int32_t>(*p));
  }
  static HR_INLINE Sum score(__m512i key, __m512i query, Sum sum) {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)key, (__m512bh)query)};
  }
  static HR_INLINE Vec finish(Sum sum, const std::byte*, const KVTileShape&) { return sum; }
  static HR_INLINE __m512i value(const std::byte* p) { return _mm512_loadu_si512(p); }
  static HR_INLINE __m512i partial_value(const std::byte* p, bool has_first, bool has_second) {
    const uint32_t keep = (has_first ? 0xffffu : 0u) | (has_second ? 0xffff0000u : 0u);
    return _mm512_and_si512(value(p), _mm512_set1_epi32(static_cast<int32_t>(keep)));
  }
  static HR_INLINE __m512i splat_weight(const Weight* p) {
    return _mm512_set1_epi32(static_cast<int32_t>(word_at(p)));
  }
  static HR_INLINE Sum weigh(__m512i value, __m512i weight, Sum sum) {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)value, (__m512bh)weight)};
  }
  static HR_INLINE void store_weights(Weight* p, Vec weights) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(weights.v));
  }
};
using BF16 = DotBF16;
#else
using BF16 = WideBF16;
#endif

// Codes, multiplied as integers: all sums are exact, whatever their order. Weights are codes of 16
// bits, too.
struct Codes {
  static constexpr bool kIsExact = true;
  static constexpr int kUnit = 2, kStepBytes = 64;
  static constexpr int kMaxWeight = 32767;
  using Weight = int16_t;
  using Sum = IntVec;

  static HR_INLINE WeightPair splat_weight(const Weight* p) { return splat_weights(p); }
  static HR_INLINE Sum weigh(const CodePairs& value, const WeightPair& weight, Sum sum) {
    return dot_pairs(value, weight, sum);
  }
  static HR_INLINE Vec value_scales(const std::byte* tile, const KVTileShape& shape) {
    return load(reinterpret_cast<const float*>(tile + shape.value_scales));
  }
  static HR_INLINE Vec finish(Sum sum, const std::byte* tile, const KVTileShape& shape) {
    return to_float(sum) * load(reinterpret_cast<const float*>(tile + shape.key_scales));
  }
};

struct Int8 : Codes {
  static constexpr int kKeyStep = 4, kValueBytes = 1;
  static constexpr int kMaxWeightSum = kAttentionChunk * kMaxWeight;
  static_assert(int64_t{kMaxWeightSum} * 127 <= INT32_MAX);
  struct Query {
    int8_t codes[kKeyStep];
  };

  static HR_INLINE Sum start(const QueryScale& query) { return splat_int(query.bias); }
  static HR_INLINE KeyCodes key(const std::byte* p) { return load_key_codes(p); }
  static HR_INLINE CodeQuad splat_query(const Query* p) { return splat_quad(p->codes); }
  static HR_INLINE Sum score(const KeyCodes& key, const CodeQuad& query, Sum sum) {
    return dot_quads(key, query, sum);
  }
  static HR_INLINE CodePairs value(const std::byte* p) { return load_wide_pairs(p); }
};

struct Int16 : Codes {
  static constexpr int kKeyStep = 2, kValueBytes = 2;
  // Rounding may add half a code for each key, and the sum that it bounds is rounded, too.
  static constexpr int kMaxWeightSum = (1 << (31 - kValueBits)) - 2 * kAttentionChunk;
  struct Query {
    int16_t codes[kKeyStep];
  };

  static HR_INLINE Sum start(const QueryScale&) { return splat_int(0); }
  static HR_INLINE CodePairs key(const std::byte* p) { return load_code_pairs(p); }
  static HR_INLINE WeightPair splat_query(const Query* p) { return splat_weights(p->codes); }
  static HR_INLINE Sum score(const CodePairs& key, const WeightPair& query, Sum sum) {
    return dot_pairs(key, query, sum);
  }
  static HR_INLINE CodePairs value(const std::byte* p) { return load_code_pairs(p); }
};

}  // namespace headrace::HR_ISA
