// Where things lie in a packed weight; drawn in src/headrace/kernels/formats.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headrace {

inline constexpr int64_t kWeightHeader = 64;          // bytes before the first panel
inline constexpr uint32_t kWeightMagic = 0x32575248;  // "HRW2"

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

// Sizes inside one panel of 16 outputs: blocks of one or two groups, each with its scales in front
// of its codes, so that a panel is one stream of memory.
struct PanelLayout {
  int64_t groups;        // of 32 inputs
  int64_t group_codes;   // bytes of codes (or float weights) per group
  int64_t group_scales;  // bytes of scales and mins per group
  int64_t mins;          // from a group's scales to its mins
  int64_t block_bytes;
  int64_t bytes;    // from panel to panel
  int block_shift;  // a block has 1 << block_shift groups
};

HR_ALWAYS_INLINE PanelLayout panel_layout(WeightFormat format, int64_t num_inputs, bool has_mins) {
  PanelLayout layout{};
  layout.groups = (num_inputs + kGroup - 1) / kGroup;
  switch (format) {
    case WeightFormat::kW4G32:
      layout.group_codes = 256;
      layout.mins = 32;
      break;
    case WeightFormat::kW8G32:
      layout.group_codes = 512;
      layout.mins = 32;
      break;
    case WeightFormat::kW8G16:
      layout.group_codes = 512;
      layout.mins = 64;
      break;
    case WeightFormat::kF32:
      layout.group_codes = 2048;
      break;
    default:
      layout.group_codes = 1024;
  }
  layout.group_scales = layout.mins * (has_mins ? 2 : 1);
  layout.block_shift = layout.group_scales == 32 ? 1 : 0;  // two groups fill a line of scales
  layout.block_bytes = (layout.group_scales + layout.group_codes) << layout.block_shift;
  layout.bytes = ((layout.groups + layout.block_shift) >> layout.block_shift) * layout.block_bytes;
  return layout;
}

// Where the scales and the codes of one group are.
struct GroupPlace {
  const std::byte* scales;
  const std::byte* codes;
};

HR_ALWAYS_INLINE GroupPlace locate_group(const PanelLayout& layout, const std::byte* panel,
                                         int64_t group) {
  const std::byte* block = panel + (group >> layout.block_shift) * layout.block_bytes;
  const int64_t inside = group & layout.block_shift;
  return {block + inside * layout.group_scales,
          block + (layout.group_scales << layout.block_shift) + inside * layout.group_codes};
}

HR_ALWAYS_INLINE int64_t num_panels(int64_t num_outputs) {
  return (num_outputs + kPanel - 1) / kPanel;
}

}  // namespace headrace
