#include "tests/weights.h"

#include <cstring>
#include <random>

#include "base/half.h"
#include "gemm/panels.h"

namespace headrace::tests {
namespace {

void put_half(std::byte* p, int64_t index, uint16_t bits) { std::memcpy(p + 2 * index, &bits, 2); }

void put_code(std::byte* codes, WeightFormat format, int lane, int i, int code) {
  const int quad = i / 4, byte = 4 * lane + i % 4;
  if (format != WeightFormat::kW4G32) {
    codes[64 * quad + byte] = static_cast<std::byte>(code);
    return;
  }
  codes[64 * (quad / 2) + byte] |= static_cast<std::byte>(quad % 2 == 0 ? code : code << 4);
}

void put_float(std::byte* panel, WeightFormat format, int lane, int64_t k, float value) {
  switch (format) {
    case WeightFormat::kBF16:
      put_half(panel + 64 * (k / 2) + 4 * lane, k % 2, bf16_from_float(value));
      break;
    case WeightFormat::kF16:
      put_half(panel, k * kPanel + lane, f16_from_float(value));
      break;
    default:
      std::memcpy(panel + 4 * (k * kPanel + lane), &value, 4);
  }
}

float rounded(WeightFormat format, float value) {
  if (format == WeightFormat::kBF16) return float_from_bf16(bf16_from_float(value));
  return format == WeightFormat::kF16 ? float_from_f16(f16_from_float(value)) : value;
}

}  // namespace

TestWeight make_weight(WeightFormat format, bool has_mins, int64_t num_outputs, int64_t num_inputs,
                       unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  const PanelLayout layout = panel_layout(format, num_inputs, has_mins);
  const bool quantized = is_quantized(format);
  const int top = format == WeightFormat::kW4G32 ? 15 : 255;
  const int32_t offset = quantized && !has_mins ? (top + 1) / 2 : 0;
  TestWeight weight;
  weight.memory =
      Mapping(static_cast<size_t>(kWeightHeader + num_panels(num_outputs) * layout.bytes));
  std::byte* data = weight.memory.data();
  WeightHeader header{};
  header.magic = kWeightMagic;
  header.exponent = 3;  // what is stored is 8 times the weight
  if (!quantized) header.exponent = 0;
  std::memcpy(data, &header, sizeof(header));
  weight.packed = {data, num_outputs, num_inputs, format, has_mins, offset};
  weight.values.resize(static_cast<size_t>(num_outputs * num_inputs));
  const int group_size = format == WeightFormat::kW8G16 ? 16 : 32;
  for (int64_t n = 0; n < num_outputs; ++n) {
    std::byte* panel = data + kWeightHeader + n / kPanel * layout.bytes;
    const int lane = static_cast<int>(n % kPanel);
    float scale = 0.0f, min = 0.0f;
    for (int64_t k = 0; k < num_inputs; ++k) {
      double& value = weight.values[static_cast<size_t>(n * num_inputs + k)];
      if (!quantized) {
        value = rounded(format, uniform(random) - 0.5f);
        put_float(panel, format, lane, k, static_cast<float>(value));
        continue;
      }
      const GroupPlace place = locate_group(layout, panel, k / kGroup);
      auto* scales = const_cast<std::byte*>(place.scales);
      auto* codes = const_cast<std::byte*>(place.codes);
      if (k % group_size == 0) {
        const int64_t index = k % kGroup / group_size * kPanel + lane;
        scale = rounded(WeightFormat::kF16, 0.01f + 0.01f * uniform(random));
        min = rounded(WeightFormat::kF16, -0.1f * uniform(random));
        put_half(scales, index, f16_from_float(scale));
        if (has_mins) put_half(scales + layout.mins, index, f16_from_float(min));
      }
      const int code = static_cast<int>(random() % static_cast<unsigned>(top + 1));
      put_code(codes, format, lane, static_cast<int>(k % kGroup), code);
      value = (double{scale} * (code - offset) + (has_mins ? double{min} : 0.0)) / 8.0;
    }
  }
  return weight;
}

}  // namespace headrace::tests
