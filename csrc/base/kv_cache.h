// Keys and values of all layers, in blocks of P tokens.
//
// One region a layer; block b of a layer is [G, P / 16] tiles of sixteen tokens of one head. A tile
// is its keys and then its values, each from a multiple of 64 bytes:
//
// - keys [ceil(D / u), 16, u]: u adjacent elements of one token, tokens innermost, so that sixteen
//   scores are one Vec that adds up over D and nothing is summed across lanes;
// - values [16 / w, D, w]: w adjacent tokens of one element.
//
// u and w are what dot products of the dtype take at once: 1 and 1 for f32 and f16, 2 and 2 for
// bf16 and int16, 4 and 2 for int8. Codes are signed, but keys of int8 are biased by 128; sixteen
// float32 scales, one a token, follow the codes of the keys and of the values. Memory is mapped at
// creation and touched only when written (untouched blocks read as zeros). A Vec may be read from
// the start of any sixteen elements of a row of values, also past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/types.h"

namespace headrace {

inline constexpr int kKeyTile = 16;  // tokens per tile; also the lanes of a Vec
inline constexpr int kMaxHeadSize = 1024;
inline constexpr int kAttentionChunk = 512;  // ATTENTION_CHUNK of kernels/ops.py

struct KVLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;  // G
  int32_t head_size = 0;     // D
  int32_t block_size = 0;    // P
  DType dtype = DType::kF16;
  std::vector<int32_t> layer_groups;  // layer -> KV group
  std::vector<int32_t> num_blocks;    // per group
};

// Whether keys and values are codes with scales.
HR_ALWAYS_INLINE bool has_scales(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16;
}

// Where things lie inside a tile, from the layout's D and dtype.
struct KVTileShape {
  int element;           // bytes
  int key_unit;          // u
  int value_unit;        // w
  int64_t key_scales;    // offset; of codes only
  int64_t values;        // offset
  int64_t value_scales;  // offset; of codes only
  int64_t bytes;
};

class KVCache {
 public:
  // Throws std::invalid_argument for a layout that makes no sense (P must be a multiple of 16 that
  // divides 512), std::bad_alloc without address space.
  explicit KVCache(KVLayout layout);
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  HR_ALWAYS_INLINE const KVLayout& layout() const { return layout_; }
  HR_ALWAYS_INLINE const KVTileShape& tile_shape() const { return shape_; }
  HR_ALWAYS_INLINE int group_of(int layer) const { return layout_.layer_groups[layer]; }

  // Bytes from one KV head to the next inside a block.
  HR_ALWAYS_INLINE int64_t head_bytes() const { return head_bytes_; }

  // The tile of one head that holds token `offset` of a block.
  HR_ALWAYS_INLINE std::byte* tile(int layer, int64_t block, int head, int64_t offset) const {
    return layers_[layer].data() + block * block_bytes_ + head * head_bytes_ +
           offset / kKeyTile * shape_.bytes;
  }

  // Gives the memory of all blocks back: they read as zeros again. Throws std::bad_alloc.
  void clear();

  // Copies one block in every layer of the group. Indices must be in range.
  void copy_block(int group, int64_t source, int64_t target);

  // Canonical form: float32 [2, layers of the group, G, P, D], keys then values.
  int64_t export_size(int group) const;  // in floats
  void export_block(int group, int64_t block, float* out) const;
  void import_block(int group, int64_t block, const float* in);

 private:
  KVLayout layout_;
  KVTileShape shape_;
  int64_t head_bytes_ = 0;
  int64_t block_bytes_ = 0;
  std::vector<Mapping> layers_;
};

}  // namespace headrace
