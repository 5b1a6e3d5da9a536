// The operand of `ldtilecfg`: the shapes of the tile registers (Intel's manual, volume 1, chapter
// 18, palette 1).
#pragma once

#include <cstdint>

#include "base/types.h"

namespace headrace {

inline constexpr int kMostTileRows = 16;
inline constexpr int kTileRowBytes = 64;  // at most

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of the registers 0 to 7, then zeros
  uint8_t rows[16] = {};

  HR_ALWAYS_INLINE void set(int tile, int num_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace headrace
