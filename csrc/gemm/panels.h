// Where things lie in a packed weight; drawn in src/headrace/kernels/formats.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headrace {

inline constexpr int64_t kWeightHeader = 64;          // bytes before the first panel
inline constexpr uint32_t kWeightMagic = 0x31575248;  // "HRW1"

struct WeightHeader {
  uint32_t magic;
  uint8_t format;
  uint8_t has_mins;
  uint16_t offset;
  int64_t num_outputs;
  int64_t num_inputs;
  int32_t exponent;  // stored scales and mins are the real ones times 2^exponent
};
static_assert(sizeof(WeightHeader) == 32);

HR_ALWAYS_INLINE int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

HR_ALWAYS_INLINE bool is_quantized(WeightFormat format) {
  return format == WeightFormat::kW4G32 || format == WeightFormat::kW8G32 ||
         format == WeightFormat::kW8G16;
}

// Sizes inside one panel of 16 outputs.
struct PanelLayout {
  int64_t groups;       // of 32 inputs
  int64_t group_codes;  // bytes of codes (or float weights) per group
  int64_t scales;       // offset of the scales from the start of the panel
  int64_t mins;         // offset of the mins
  int64_t bytes;        // from panel to panel
};

HR_ALWAYS_INLINE PanelLayout panel_layout(WeightFormat format, int64_t num_inputs, bool has_mins) {
  PanelLayout layout{};
  layout.groups = (num_inputs + kGroup - 1) / kGroup;
  int64_t scale_bytes = 0;  // per group
  switch (format) {
    case WeightFormat::kW4G32:
      layout.group_codes = 256;
      scale_bytes = 32;
      break;
    case WeightFormat::kW8G32:
      layout.group_codes = 512;
      scale_bytes = 32;
      break;
    case WeightFormat::kW8G16:
      layout.group_codes = 512;
      scale_bytes = 64;
      break;
    case WeightFormat::kF32:
      layout.group_codes = 2048;
      break;
    default:
      layout.group_codes = 1024;
  }
  layout.scales = layout.groups * layout.group_codes;
  layout.mins = layout.scales + round_up(layout.groups * scale_bytes, kAlignment);
  layout.bytes =
      has_mins ? layout.mins + round_up(layout.groups * scale_bytes, kAlignment) : layout.mins;
  return layout;
}

HR_ALWAYS_INLINE int64_t num_panels(int64_t num_outputs) {
  return (num_outputs + kPanel - 1) / kPanel;
}

}  // namespace headrace
