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

HR_INLINE int code_at(const std::byte* codes, WeightFormat format, int lane, int i) {
  const int quad = i / 4, byte = 4 * lane + i % 4;
  if (!has_nibbles(format)) return std::to_integer<int>(codes[64 * quad + byte]);
  const int pair = std::to_integer<int>(codes[64 * (quad / 2) + byte]);
  return code_table(format).values[quad % 2 == 0 ? pair & 15 : pair >> 4];
}

HR_INLINE void embed_quantized(const PackedWeight& table, const Row& row, float unit, float* out) {
  const int per_group = table.format == WeightFormat::kW8G16 ? 2 : 1;  // scales per 32 inputs
  for (int64_t k = 0; k < table.num_inputs; ++k) {
    const GroupPlace place = locate_group(row.layout, row.panel, k / kGroup);
    const int i = static_cast<int>(k % kGroup);
    const int index = i * per_group / kGroup * kPanel + row.lane;
    const float scale = half_at(place.scales, index);
    const float min = table.has_mins ? half_at(place.scales + row.layout.mins, index) : 0.0f;
    const int code = code_at(place.codes, table.format, row.lane, i) - table.offset;
    out[k] = (scale * static_cast<float>(code) + min) * unit;
  }
}

HR_INLINE void embed_float(const PackedWeight& table, const Row& row, float* out) {
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
    out[k] = value;
  }
}

}  // namespace

void embed(const EmbedArgs& args, OpContext& context) {
  const PackedWeight& table = args.table;
  const PanelLayout layout = panel_layout(table.format, table.num_inputs, table.has_mins);
  const int exponent = reinterpret_cast<const WeightHeader*>(table.data)->exponent;
  const float unit = std::ldexp(1.0f, -exponent);
  const auto embed_token = [&](int64_t t, int) {
    const int64_t id = context.inputs.token_ids[t];
    const Row row{table.data + kWeightHeader + id / kPanel * layout.bytes, layout,
                  static_cast<int>(id % kPanel)};
    float* out = args.out.row(t);
    if (is_quantized(table.format)) {
      // The power of two and the scale of the op are two multiplications, so that the first is
      // exact.
      embed_quantized(table, row, unit, out);
    } else {
      embed_float(table, row, out);
    }
    for (int64_t k = 0; k < table.num_inputs; ++k) out[k] *= args.scale;
  };
  const int num_tokens = context.inputs.num_tokens;
  if (num_tokens < 8) {
    for (int t = 0; t < num_tokens; ++t) embed_token(t, 0);
  } else {
    context.pool.parallel_for(num_tokens, embed_token);
  }
}

}  // namespace headrace::HR_ISA
