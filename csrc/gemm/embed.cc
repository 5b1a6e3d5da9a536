// Rows of an embedding table, read straight from its panels.
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "base/kernels.h"
#include "base/simd.h"
#include "gemm/nibbles.h"
#include "gemm/panels.h"

namespace headrace::HR_ISA {
namespace {

// One row of a panel: where its scales, mins and codes are.
struct Row {
  const std::byte* panel;
  PanelLayout layout;
  int lane;
};

HR_INLINE float half_at(const std::byte* p, int64_t index) {
  uint16_t bits;
  std::memcpy(&bits, p + 2 * index, 2);
  return float_from_f16(bits);
}

// The codes of one output in a group: four in a row at every 64th byte, or two times four in
// nibbles.
HR_INLINE void read_codes(const std::byte* codes, WeightFormat format, int lane, float* out) {
  uint8_t bytes[kGroup];
  const int quads = has_nibbles(format) ? 4 : 8;
  for (int i = 0; i < quads; ++i) std::memcpy(bytes + 4 * i, codes + 64 * i + 4 * lane, 4);
  if (!has_nibbles(format)) {
    for (int i = 0; i < kGroup; ++i) out[i] = static_cast<float>(bytes[i]);
    return;
  }
  const uint8_t* values = code_table(format).values;
  for (int i = 0; i < kGroup / 2; ++i) {
    float* at = out + i / 4 * 8 + i % 4;
    at[0] = static_cast<float>(values[bytes[i] & 15]);
    at[4] = static_cast<float>(values[bytes[i] >> 4]);
  }
}

HR_INLINE void embed_quantized(const PackedWeight& table, const Row& row, float unit, float scale,
                               float* out) {
  const int per_group = table.format == WeightFormat::kW8G16 ? 2 : 1;  // scales per 32 inputs
  const Vec offset = splat(static_cast<float>(table.offset));
  for (int64_t group = 0; group < row.layout.groups; ++group) {
    const GroupPlace place = locate_group(row.layout, row.panel, group);
    alignas(64) float codes[kGroup];
    read_codes(place.codes, table.format, row.lane, codes);
    const int64_t rest = table.num_inputs - group * kGroup;
    for (int half = 0; half < 2 && rest > half * kLanes; ++half) {
      const int index = half * per_group / 2 * kPanel + row.lane;
      const Vec group_scale = splat(half_at(place.scales, index));
      const Vec min = splat(table.has_mins ? half_at(place.scales + row.layout.mins, index) : 0.0f);
      const Vec value = group_scale * (load(codes + half * kLanes) - offset) + min;
      // The power of two and the scale of the op are two multiplications, so that the first is
      // exact.
      const Vec scaled = value * splat(unit) * splat(scale);
      float* at = out + group * kGroup + half * kLanes;
      if (rest >= (half + 1) * kLanes) {
        store(at, scaled);
      } else {
        store(at, scaled, first_lanes(static_cast<int>(rest) - half * kLanes));
      }
    }
  }
}

HR_INLINE void embed_float(const PackedWeight& table, const Row& row, float scale, float* out) {
  for (int64_t k = 0; k < table.num_inputs; ++k) {
    float value;
    uint16_t bits;
    switch (table.format) {
      case WeightFormat::kBF16:
        std::memcpy(&bits, row.panel + 64 * (k / 2) + 4 * row.lane + 2 * (k % 2), 2);
        value = float_from_bf16(bits);
        break;
      case WeightFormat::kF16:
        value = half_at(row.panel, k * kPanel + row.lane);
        break;
      default:
        std::memcpy(&value, row.panel + 4 * (k * kPanel + row.lane), 4);
    }
    out[k] = value * scale;
  }
}

}  // namespace

void embed(const EmbedArgs& args, OpContext& context) {
  const PackedWeight& table = args.table;
  const PanelLayout layout = panel_layout(table.format, table.num_inputs, table.has_mins);
  const int exponent = reinterpret_cast<const WeightHeader*>(table.data)->exponent;
  const float unit = std::ldexp(1.0f, -exponent);
  const auto embed_token = [&](int64_t t, int) {
    const int64_t id = context.inputs.token_ids[context.tokens.first + t];
    if (id < 0) {
      std::memcpy(args.out.row(t), context.inputs.embeddings + (-1 - id) * table.num_inputs,
                  static_cast<size_t>(table.num_inputs) * sizeof(float));
      return;
    }
    const Row row{table.data + kWeightHeader + id / kPanel * layout.bytes, layout,
                  static_cast<int>(id % kPanel)};
    float* out = args.out.row(t);
    if (is_quantized(table.format)) {
      embed_quantized(table, row, unit, args.scale, out);
    } else {
      embed_float(table, row, args.scale, out);
    }
  };
  const int num_tokens = context.tokens.count;
  constexpr int kAlone = 16;  // so few are done before other threads have woken
  if (num_tokens < kAlone) {
    for (int t = 0; t < num_tokens; ++t) embed_token(t, 0);
  } else {
    context.pool.parallel_for(num_tokens, embed_token);
  }
}

}  // namespace headrace::HR_ISA
