// What the elementwise ops share: rows given out to threads, and rows of any dtype written from
// Vecs.
#pragma once

#include "base/kernels.h"
#include "base/quantize.h"
#include "base/simd.h"

namespace headrace::HR_ISA {

// Below this many elements waking other threads costs more than it saves (about 2 us of work).
inline constexpr int64_t kInlineElements = 16384;
// Elements of one work item.
inline constexpr int64_t kItemElements = 8192;

// Stands for "all sixteen lanes" where a Mask is expected, at no cost.
struct AllLanes {};
HR_INLINE Vec load(const float* p, AllLanes) { return load(p); }

// Calls fn(row) for every row in [0, num_rows) of `width` elements, on several threads if worth it.
template <typename Fn>
HR_INLINE void for_rows(ThreadPool& pool, int64_t num_rows, int64_t width, Fn fn) {
  if (num_rows * width <= kInlineElements) {
    for (int64_t row = 0; row < num_rows; ++row) fn(row);
    return;
  }
  const int64_t per_item = width >= kItemElements ? 1 : kItemElements / width;
  const int64_t num_items = (num_rows + per_item - 1) / per_item;
  pool.parallel_for(num_items, [&](int64_t item, int) {
    const int64_t end = (item + 1) * per_item < num_rows ? (item + 1) * per_item : num_rows;
    for (int64_t row = item * per_item; row < end; ++row) fn(row);
  });
}

// Calls fn(i, lanes) for every sixteen columns of a row; `lanes` is AllLanes but at the ragged end.
template <typename Fn>
HR_INLINE void for_columns(int width, Fn fn) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) fn(i, AllLanes{});
  if (i < width) fn(i, first_lanes(width - i));
}

HR_INLINE void store_f32(float* p, Vec x, AllLanes) { store(p, x); }
HR_INLINE void store_f32(float* p, Vec x, Mask k) { store(p, x, k); }
HR_INLINE void store_half(uint16_t* p, Vec x, DType dtype, AllLanes) {
  dtype == DType::kBF16 ? store_bf16(p, x) : store_f16(p, x);
}
HR_INLINE void store_half(uint16_t* p, Vec x, DType dtype, Mask k) {
  dtype == DType::kBF16 ? store_bf16(p, x, k) : store_f16(p, x, k);
}

// Writes one row of any dtype. value(i, lanes) gives columns [i, i + 16); lanes beyond the mask
// that it is called with must be zero.
template <typename Value>
HR_INLINE void write_row(int width, DType dtype, std::byte* out, Value value) {
  if (dtype == DType::kF32) {
    float* row = reinterpret_cast<float*>(out);
    for_columns(width, [&](int i, auto lanes) { store_f32(row + i, value(i, lanes), lanes); });
    return;
  }
  if (dtype != DType::kQ8) {
    uint16_t* row = reinterpret_cast<uint16_t*>(out);
    for_columns(width,
                [&](int i, auto lanes) { store_half(row + i, value(i, lanes), dtype, lanes); });
    return;
  }
  Q8Group* group = reinterpret_cast<Q8Group*>(out);
  int i = 0;
  for (; i + kGroup <= width; i += kGroup) {
    quantize_group(value(i, AllLanes{}), value(i + kLanes, AllLanes{}), group++);
  }
  if (i == width) return;
  const int rest = width - i;
  const Vec first = rest >= kLanes ? value(i, AllLanes{}) : value(i, first_lanes(rest));
  const Vec second = rest > kLanes ? value(i + kLanes, first_lanes(rest - kLanes)) : zero();
  quantize_group(first, second, group);
}

}  // namespace headrace::HR_ISA
