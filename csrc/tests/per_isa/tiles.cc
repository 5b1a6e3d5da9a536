// The kernel for tile registers on an emulation of them, which refuses what the CPU would.
#include "base/kernels.h"
#include "gemm/amx/kernel.h"
#include "tests/check.h"

namespace headrace::HR_ISA {
namespace {

// Intel's manual, volume 2: LDTILECFG, TILEZERO, TILELOADD, TDPBSUD, TILESTORED.
class EmulatedTiles {
 public:
  explicit EmulatedTiles(const TileConfig& config) {
    CHECK(config.palette == 1 && config.start_row == 0, "palette %d", config.palette);
    for (int i = 0; i < kTiles; ++i) {
      tiles_[i].rows = config.rows[i];
      tiles_[i].row_bytes = config.row_bytes[i];
      CHECK(tiles_[i].rows <= kMostTileRows && tiles_[i].row_bytes <= kTileRowBytes &&
                (tiles_[i].rows == 0) == (tiles_[i].row_bytes == 0),
            "tile %d has %d rows of %d bytes", i, tiles_[i].rows, tiles_[i].row_bytes);
      zero(tiles_[i]);
    }
  }
  ~EmulatedTiles() { CHECK(is_released_, "the tiles were not released"); }
  void release() { is_released_ = true; }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  template <int kTile>
  void zero() {
    zero(tiles_[kTile]);
  }
  template <int kTile>
  void load(const void* rows, int64_t stride) {
    Tile& tile = tiles_[kTile];
    zero(tile);
    for (int m = 0; m < tile.rows; ++m) {
      std::memcpy(tile.bytes[m], static_cast<const std::byte*>(rows) + m * stride,
                  static_cast<size_t>(tile.row_bytes));
    }
  }
  template <int kTile>
  void store(void* rows, int64_t stride) {
    const Tile& tile = tiles_[kTile];
    for (int m = 0; m < tile.rows; ++m) {
      std::memcpy(static_cast<std::byte*>(rows) + m * stride, tile.bytes[m],
                  static_cast<size_t>(tile.row_bytes));
    }
  }
  template <int kSums, int kA, int kB>
  void dot() {
    Tile& sums = tiles_[kSums];
    const Tile &a = tiles_[kA], &b = tiles_[kB];
    CHECK(sums.rows == a.rows && sums.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows,
          "%d x %d times %d x %d into %d x %d", a.rows, a.row_bytes, b.rows, b.row_bytes, sums.rows,
          sums.row_bytes);
    for (int m = 0; m < sums.rows; ++m) {
      for (int n = 0; n < sums.row_bytes / 4; ++n) {
        int32_t sum;
        std::memcpy(&sum, sums.bytes[m] + 4 * n, 4);
        for (int k = 0; k < a.row_bytes; ++k) {
          sum += static_cast<int8_t>(a.bytes[m][k]) * b.bytes[k / 4][4 * n + k % 4];
        }
        std::memcpy(sums.bytes[m] + 4 * n, &sum, 4);
      }
    }
  }

 private:
  static constexpr int kTiles = 8;
  struct Tile {
    int rows, row_bytes;
    uint8_t bytes[kMostTileRows][kTileRowBytes];
  };

  static void zero(Tile& tile) { std::memset(tile.bytes, 0, sizeof(tile.bytes)); }

  Tile tiles_[kTiles];
  bool is_released_ = false;
};

}  // namespace

void linear_on_emulated_tiles(const LinearArgs& args, OpContext& context) {
  linear_on_tiles<EmulatedTiles>(args, context);
}

}  // namespace headrace::HR_ISA
