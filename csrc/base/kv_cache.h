// Keys and values of all layers, in blocks of P tokens.
//
// One region a layer; block b of a layer is keys [G, P / 16, D, 16] and then values [G, P, D], in
// the cache's dtype. Keys lie in tiles of sixteen tokens with the tokens innermost, so that sixteen
// scores are one Vec that adds up over D and nothing is summed across lanes; values lie as they are
// read, a row of D per token. Memory is mapped at creation and touched only when written (untouched
// blocks read as zeros). A Vec may be read from the start of any sixteen elements of a value row,
// also past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/types.h"

namespace headrace {

inline constexpr int kKeyTile = 16;  // tokens per tile of keys; also the lanes of a Vec
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

class KVCache {
 public:
  // Throws std::invalid_argument for a layout that makes no sense (P must be a multiple of 16 that
  // divides 512), std::bad_alloc without address space.
  explicit KVCache(KVLayout layout);
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  HR_ALWAYS_INLINE const KVLayout& layout() const { return layout_; }
  HR_ALWAYS_INLINE int group_of(int layer) const { return layout_.layer_groups[layer]; }
  HR_ALWAYS_INLINE int64_t element_size() const { return layout_.dtype == DType::kF32 ? 4 : 2; }

  // Bytes from one KV head to the next inside the keys (or values) of a block.
  HR_ALWAYS_INLINE int64_t head_bytes() const {
    return int64_t{layout_.block_size} * layout_.head_size * element_size();
  }

  HR_ALWAYS_INLINE std::byte* keys(int layer, int64_t block) const {
    return layers_[layer].data() + block * block_bytes_;
  }
  HR_ALWAYS_INLINE std::byte* values(int layer, int64_t block) const {
    return keys(layer, block) + block_bytes_ / 2;
  }

  // Copies one block in every layer of the group. Indices must be in range.
  void copy_block(int group, int64_t source, int64_t target);

  // Canonical form: float32 [2, layers of the group, G, P, D], keys then values.
  int64_t export_size(int group) const;  // in floats
  void export_block(int group, int64_t block, float* out) const;
  void import_block(int group, int64_t block, const float* in);

 private:
  KVLayout layout_;
  int64_t block_bytes_ = 0;
  std::vector<Mapping> layers_;
};

}  // namespace headrace
