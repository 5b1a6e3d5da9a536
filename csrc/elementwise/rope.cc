// rope_table and rotate_and_store.
#include <cmath>

#include "attention/store.h"
#include "base/kernels.h"
#include "base/kv_cache.h"
#include "elementwise/norm.h"
#include "elementwise/rows.h"

namespace headrace::HR_ISA {
namespace {

// The last sequence that starts at or before token t and has tokens.
HR_INLINE int sequence_of(const StepInputs& inputs, int64_t t) {
  int low = 0, high = inputs.num_sequences;  // query_starts[low] <= t < query_starts[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (inputs.query_starts[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// x and its partner `half` elements on: (a cos - b sin, b cos + a sin).
HR_INLINE void rotate_head(float* head, const float* rope, int half) {
  for_columns(half, [&](int i, auto lanes) {
    const Vec a = load(head + i, lanes), b = load(head + half + i, lanes);
    const Vec c = load(rope + i, lanes), s = load(rope + half + i, lanes);
    store_f32(head + i, fma(a, c, zero() - b * s), lanes);
    store_f32(head + half + i, fma(b, c, a * s), lanes);
  });
}

HR_INLINE void normalise_head(float* head, const float* weight, int size, float eps) {
  const Vec factor = splat(rms_factor(head, size, eps));
  for_columns(size, [&](int i, auto lanes) {
    store_f32(head + i, load(head + i, lanes) * factor * load(weight + i, lanes), lanes);
  });
}

}  // namespace

void rope_table(const RopeTableArgs& args, OpContext& context) {
  const int half = args.out.width / 2;
  // A sine and cosine in double take as long as some thirty elements of other ops.
  for_rows(context.pool, context.tokens.count, int64_t{32} * half, [&](int64_t t) {
    const double position = context.inputs.positions[context.tokens.first + t];
    float* row = args.out.row(t);
    for (int i = 0; i < half; ++i) {
      const double angle = position * static_cast<double>(args.frequencies[i]);
      row[i] = static_cast<float>(::cos(angle) * static_cast<double>(args.scale));
      row[half + i] = static_cast<float>(::sin(angle) * static_cast<double>(args.scale));
    }
  });
}

void rotate_and_store(const RotateAndStoreArgs& args, OpContext& context) {
  const StepInputs& inputs = context.inputs;
  const KVCache& kv = context.kv;
  const int size = kv.layout().head_size, num_kv_heads = kv.layout().num_kv_heads;
  const int block_size = kv.layout().block_size;
  const int half = args.rope.width / 2;
  const int group = kv.group_of(args.layer);
  for_rows(context.pool, context.tokens.count, args.qkv.width, [&](int64_t t) {
    const int64_t token = context.tokens.first + t;
    const int s = sequence_of(inputs, token);
    const int64_t key_index = inputs.key_starts[s] + (token - inputs.query_starts[s]);
    const int64_t table_row = inputs.slots[s] * inputs.table_widths[group];
    const int32_t block = inputs.block_tables[group][table_row + key_index / block_size];
    const int64_t offset = key_index % block_size;
    const float* rope = args.rope.row(t);
    float* head = args.qkv.row(t);
    for (int h = 0; h < args.num_heads; ++h, head += size) {
      if (args.q_norm != nullptr) normalise_head(head, args.q_norm, size, args.eps);
      rotate_head(head, rope, half);
    }
    const float* value = head + int64_t{num_kv_heads} * size;
    for (int g = 0; g < num_kv_heads; ++g, head += size, value += size) {
      if (args.k_norm != nullptr) normalise_head(head, args.k_norm, size, args.eps);
      rotate_head(head, rope, half);
      if (block < 0) continue;
      store_head(kv, kv.tile(args.layer, block, g, offset), offset % kKeyTile, head, value);
    }
  });
}

}  // namespace headrace::HR_ISA
