// activation, gated_activation, convert, gather_outputs and soft_cap.
#include <cstring>

#include "base/kernels.h"
#include "elementwise/rows.h"

namespace headrace::HR_ISA {
namespace {

HR_INLINE Vec silu(Vec x) { return x / (splat(1.0f) + exp(zero() - x)); }

// 0.5 (1 + tanh u) = 1 / (1 + e^-2u): no cancellation for negative u.
HR_INLINE Vec gelu_tanh(Vec x) {
  const Vec cube = x * x * x;
  const Vec twice = fma(cube, splat(0.044715f), x) * splat(-1.5957691216057308f);
  return x / (splat(1.0f) + exp(twice));
}

// x (1 + erf(x / sqrt(2))) / 2, by erfc of the magnitude: no cancellation on either side.
HR_INLINE Vec gelu(Vec x) {
  const Vec half = splat(0.5f) * erfc(abs(x) * splat(0.70710678f));
  return select(x < zero(), x * half, x - x * half);
}

// Calls fn with the function of this kind.
template <typename Fn>
HR_INLINE void with_function(Activation kind, Fn fn) {
  switch (kind) {
    case Activation::kSilu:
      return fn([](Vec x) { return silu(x); });
    case Activation::kGeluTanh:
      return fn([](Vec x) { return gelu_tanh(x); });
    case Activation::kGelu:
      return fn([](Vec x) { return gelu(x); });
  }
}

template <typename Gate>
HR_INLINE void gate_rows(const GatedActivationArgs& args, OpContext& context, Gate gate) {
  const int width = args.out.width;
  for_rows(context.pool, context.rows(args.x.rows), 2 * width, [&](int64_t t) {
    const float* x = args.x.row(t);
    write_row(width, args.out.dtype, args.out.row<std::byte>(t), [&](int i, auto lanes) {
      return gate(load(x + i, lanes)) * load(x + width + i, lanes);
    });
  });
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, OpContext& context) {
  with_function(args.kind, [&](auto gate) { gate_rows(args, context, gate); });
}

void activation(const ActivationArgs& args, OpContext& context) {
  const int width = args.x.width;
  with_function(args.kind, [&](auto function) {
    for_rows(context.pool, context.rows(args.x.rows), width, [&](int64_t t) {
      const float* x = args.x.row(t);
      write_row(width, args.out.dtype, args.out.row<std::byte>(t),
                [&](int i, auto lanes) { return function(load(x + i, lanes)); });
    });
  });
}

void convert(const ConvertArgs& args, OpContext& context) {
  const int width = args.x.width;
  for_rows(context.pool, context.rows(args.x.rows), width, [&](int64_t t) {
    const float* x = args.x.row(t);
    write_row(width, args.out.dtype, args.out.row<std::byte>(t),
              [&](int i, auto lanes) { return load(x + i, lanes); });
  });
}

void gather_outputs(const GatherOutputsArgs& args, OpContext& context) {
  const size_t bytes = static_cast<size_t>(args.x.width) * sizeof(float);
  for_rows(context.pool, context.inputs.num_outputs, args.x.width, [&](int64_t r) {
    std::memcpy(args.out.row(r), args.x.row(context.inputs.output_rows[r]), bytes);
  });
}

void soft_cap(const SoftCapArgs& args, OpContext& context) {
  // Few long rows (logits): work is shared out by pieces of a row.
  constexpr int64_t kPiece = 4096;
  const int64_t width = args.x.width;
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  const Vec cap = splat(args.cap), inverse = splat(1.0f / args.cap);
  for_rows(context.pool, context.rows(args.x.rows) * pieces, kPiece, [&](int64_t item) {
    const int64_t first = item % pieces * kPiece;
    const int64_t size = width - first < kPiece ? width - first : kPiece;
    float* x = args.x.row(item / pieces) + first;
    for_columns(static_cast<int>(size), [&](int i, auto lanes) {
      store_f32(x + i, cap * tanh(load(x + i, lanes) * inverse), lanes);
    });
  });
}

}  // namespace headrace::HR_ISA
