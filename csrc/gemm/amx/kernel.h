// Linear layers with 4- and 8-bit weights on tile registers: sixteen rows times a panel of sixteen
// outputs.
//
// Eight quads of a panel's codes are a tile as they lie, and so are the codes of sixteen rows. A
// scale belongs to 32 (or 16) inputs, so one tile product covers just those; its integers go
// through memory into the same float operations, in the same order, as those of
// gemm/quantized.cc: the results have the same bits.
//
// `Unit` is TileUnit, or what emulates it in the native tests.
#pragma once

#include "gemm/amx/tile_config.h"
#include "gemm/dot.h"
#include "gemm/nibbles.h"
#include "gemm/quantized.h"

namespace headrace::HR_ISA {

inline constexpr int kTileHeight = kMostTileRows;
inline constexpr int kSumsTile = 0, kRowsTile = 1, kWeightTile = 2;
// Bytes of a panel's codes for a group of 32 inputs, one a byte.
inline constexpr int64_t kGroupCodes = kGroup * kPanel;

template <WeightFormat kFormat>
HR_INLINE TileConfig tile_config() {
  constexpr int kInputs = kGroup / kScalesOf<kFormat>;
  TileConfig config;
  config.set(kSumsTile, kTileHeight, kPanel * 4);
  config.set(kRowsTile, kTileHeight, kInputs);
  config.set(kWeightTile, kInputs / 4, kPanel * 4);
  return config;
}

// The nibbles of a panel as bytes, in the workspace: once for all rows of the job.
template <const CodeTable& kTable>
HR_INLINE void unpack_panel(const TileJob& job, const std::byte* panel) {
  auto* __restrict to = reinterpret_cast<uint8_t*>(job.workspace);
  for (int64_t group = 0; group < job.layout.groups; ++group, to += kGroupCodes) {
    const auto* __restrict from =
        reinterpret_cast<const uint8_t*>(locate_group(job.layout, panel, group).codes);
#pragma GCC unroll 1
    for (int line = 0; line < 4; ++line) {
      for (int i = 0; i < kAlignment; ++i) {
        const uint8_t pair = from[kAlignment * line + i];
        const int low = pair & 15, high = pair >> 4;
        uint8_t* even = to + 2 * kAlignment * line + i;
        even[0] = is_plain(kTable) ? static_cast<uint8_t>(low) : kTable.values[low];
        even[kAlignment] = is_plain(kTable) ? static_cast<uint8_t>(high) : kTable.values[high];
      }
    }
  }
}

// The inputs that share the scale `kIndex` of a group: all 32, or a half. `codes` is the group's,
// one a byte.
template <class Unit, WeightFormat kFormat, bool kHasMins, int kIndex>
HR_INLINE void add_on_tiles(Unit& unit, const TileJob& job, const std::byte* codes,
                            const std::byte* scales, const Group<kFormat, kHasMins, kTileHeight>& x,
                            Vec (&acc)[kTileHeight]) {
  constexpr int kInputs = kGroup / kScalesOf<kFormat>;
  alignas(kAlignment) int32_t sums[kTileHeight][kPanel];
  unit.template zero<kSumsTile>();
  unit.template load<kRowsTile>(x.codes[0] + kIndex * kInputs, kGroup);
  unit.template load<kWeightTile>(codes + kIndex * kInputs * kPanel, kPanel * 4);
  unit.template dot<kSumsTile, kRowsTile, kWeightTile>();
  unit.template store<kSumsTile>(sums, sizeof(sums[0]));

  const Vec scale = load_f16(halves(scales) + kIndex * kPanel);
#pragma GCC unroll 16
  for (int m = 0; m < kTileHeight; ++m) {
    IntVec dot = load_int(sums[m]);
    if constexpr (!kHasMins) dot = dot + splat_int(x.correction[kIndex][m]);
    acc[m] = fma(to_float(dot) * scale, splat(x.scale[m]), acc[m]);
  }
  if constexpr (kHasMins) {
    const Vec min = load_f16(halves(scales + job.layout.mins) + kIndex * kPanel);
#pragma GCC unroll 16
    for (int m = 0; m < kTileHeight; ++m) {
      acc[m] = fma(min, splat(x.correction[kIndex][m]), acc[m]);
    }
  }
}

template <class Unit, WeightFormat kFormat, bool kHasMins>
HR_INLINE void run_tile(Unit& unit, const TileJob& job, int64_t p, int row) {
  const std::byte* panel = job.panels + p * job.layout.bytes;
  const auto* x = reinterpret_cast<const Group<kFormat, kHasMins, kTileHeight>*>(job.operand) +
                  row / kTileHeight * job.layout.groups;
  Vec acc[kTileHeight];
#pragma GCC unroll 16
  for (int m = 0; m < kTileHeight; ++m) acc[m] = zero();
  for (int64_t group = 0; group < job.layout.groups; ++group, ++x) {
    const GroupPlace place = locate_group(job.layout, panel, group);
    const std::byte* codes =
        has_nibbles(kFormat) ? job.workspace + group * kGroupCodes : place.codes;
    add_on_tiles<Unit, kFormat, kHasMins, 0>(unit, job, codes, place.scales, *x, acc);
    if constexpr (kScalesOf<kFormat> == 2) {
      add_on_tiles<Unit, kFormat, kHasMins, 1>(unit, job, codes, place.scales, *x, acc);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileHeight; ++m) {
    if (row + m < job.last_row) store_tile_row(job, p, row + m, acc[m]);
  }
}

template <class Unit, WeightFormat kFormat, bool kHasMins>
void run_on_tiles(const TileJob& job) {
  const TileConfig config = tile_config<kFormat>();
  Unit unit(config);
  for (int64_t p = job.first_panel; p < job.last_panel; ++p) {
    if constexpr (has_nibbles(kFormat)) {
      unpack_panel<code_table(kFormat)>(job, job.panels + p * job.layout.bytes);
    }
    for (int row = job.first_row; row < job.last_row; row += kTileHeight) {
      run_tile<Unit, kFormat, kHasMins>(unit, job, p, row);
    }
  }
  unit.release();
}

template <class Unit, WeightFormat kFormat, bool kHasMins>
inline constexpr TileChoice kOnTiles = {
    kTileHeight, run_on_tiles<Unit, kFormat, kHasMins>, prepare<kFormat, kHasMins, kTileHeight>,
    sizeof(Group<kFormat, kHasMins, kTileHeight>), has_nibbles(kFormat) ? kGroupCodes : 0};

template <class Unit, WeightFormat kFormat>
void linear_of_format(const LinearArgs& args, OpContext& context) {
  if (args.weight.has_mins) {
    return run_tiles(args, context, &kOnTiles<Unit, kFormat, true>, 1, 0.0f);
  }
  run_tiles(args, context, &kOnTiles<Unit, kFormat, false>, 1, 0.0f);
}

// `linear` for Q8 rows, however many.
template <class Unit>
void linear_on_tiles(const LinearArgs& args, OpContext& context) {
  switch (args.weight.format) {
    case WeightFormat::kW4G32:
      return linear_of_format<Unit, WeightFormat::kW4G32>(args, context);
    case WeightFormat::kW8G32:
      return linear_of_format<Unit, WeightFormat::kW8G32>(args, context);
    default:
      return linear_of_format<Unit, WeightFormat::kW8G16>(args, context);
  }
}

}  // namespace headrace::HR_ISA
