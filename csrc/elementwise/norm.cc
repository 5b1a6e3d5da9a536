// rms_norm, rms_norm_add, layer_norm and add_positions.
#include "elementwise/norm.h"

#include "base/kernels.h"
#include "elementwise/rows.h"

namespace headrace::HR_ISA {

void rms_norm(const RmsNormArgs& args, OpContext& context) {
  const int width = args.x.width;
  for_rows(context.pool, context.rows(args.x.rows), width, [&](int64_t t) {
    const float* x = args.x.row(t);
    const Vec factor = splat(rms_factor(x, width, args.eps));
    write_row(width, args.out.dtype, args.out.row<std::byte>(t), [&](int i, auto lanes) {
      return load(x + i, lanes) * factor * load(args.weight + i, lanes);
    });
  });
}

void rms_norm_add(const RmsNormAddArgs& args, OpContext& context) {
  const int width = args.x.width;
  for_rows(context.pool, context.rows(args.x.rows), width, [&](int64_t t) {
    const float* x = args.x.row(t);
    float* out = args.out.row(t);
    const Vec factor = splat(rms_factor(x, width, args.eps));
    for_columns(width, [&](int i, auto lanes) {
      const Vec normed = load(x + i, lanes) * factor * load(args.weight + i, lanes);
      store_f32(out + i, load(out + i, lanes) + normed, lanes);
    });
  });
}

void layer_norm(const LayerNormArgs& args, OpContext& context) {
  const int width = args.x.width;
  for_rows(context.pool, context.rows(args.x.rows), width, [&](int64_t t) {
    const float* x = args.x.row(t);
    const Moments moments = layer_moments(x, width, args.eps);
    const Vec mean = splat(moments.mean), factor = splat(moments.factor);
    write_row(width, args.out.dtype, args.out.row<std::byte>(t), [&](int i, auto lanes) {
      const Vec normed = (load(x + i, lanes) - mean) * factor;
      return normed * load(args.weight + i, lanes) + load(args.bias + i, lanes);
    });
  });
}

void add_positions(const AddPositionsArgs& args, OpContext& context) {
  const int width = args.out.width;
  for_rows(context.pool, context.tokens.count, width, [&](int64_t t) {
    const int64_t position = context.inputs.positions[context.tokens.first + t];
    const float* row = args.table + position * width;
    float* out = args.out.row(t);
    for_columns(width, [&](int i, auto lanes) {
      store_f32(out + i, load(out + i, lanes) + load(row + i, lanes), lanes);
    });
  });
}

}  // namespace headrace::HR_ISA
