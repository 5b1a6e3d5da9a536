#include "base/kv_cache.h"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/kv_token.h"

namespace headrace {
namespace {

constexpr size_t kOverread = 64;  // bytes of one Vec

void check(const KVLayout& layout) {
  if (layout.num_layers < 0 || layout.num_kv_heads < 1 || layout.head_size < 1 ||
      layout.block_size < 1) {
    throw std::invalid_argument(
        "A KV layout needs at least one head, element and token per block.");
  }
  if (layout.head_size > kMaxHeadSize)
    throw std::invalid_argument("Head sizes above 1024 are not supported.");
  if (layout.block_size % kKeyTile != 0 || kAttentionChunk % layout.block_size != 0)
    throw std::invalid_argument("The KV block size is a multiple of 16 that divides 512.");
  if (layout.dtype == DType::kQ8)
    throw std::invalid_argument("Keys and values are f32, bf16, f16, int16 or int8.");
  if (std::cmp_not_equal(layout.layer_groups.size(), layout.num_layers)) {
    throw std::invalid_argument("A KV layout names one group per layer.");
  }
  for (const int32_t group : layout.layer_groups) {
    if (group < 0 || std::cmp_greater_equal(group, layout.num_blocks.size())) {
      throw std::invalid_argument("A layer of the KV layout names a group that does not exist.");
    }
  }
  for (const int32_t blocks : layout.num_blocks) {
    if (blocks < 0) throw std::invalid_argument("A KV group has a negative number of blocks.");
  }
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

KVTileShape shape_of(const KVLayout& layout) {
  KVTileShape shape{};
  const bool is_int8 = layout.dtype == DType::kInt8, is_bf16 = layout.dtype == DType::kBF16;
  const bool has_codes = has_scales(layout.dtype);
  shape.element = is_int8 ? 1 : layout.dtype == DType::kF32 ? 4 : 2;
  shape.key_unit = is_int8 ? 4 : has_codes || is_bf16 ? 2 : 1;
  shape.value_unit = has_codes || is_bf16 ? 2 : 1;
  const int64_t scales = has_codes ? kKeyTile * static_cast<int64_t>(sizeof(float)) : 0;
  const int64_t key_size = (layout.head_size + shape.key_unit - 1) / shape.key_unit;
  shape.key_scales = aligned(key_size * shape.key_unit * kKeyTile * shape.element);
  shape.values = shape.key_scales + scales;
  shape.value_scales = shape.values + aligned(int64_t{layout.head_size} * kKeyTile * shape.element);
  shape.bytes = shape.value_scales + scales;
  return shape;
}

}  // namespace

KVCache::KVCache(KVLayout layout) : layout_(std::move(layout)), shape_{} {
  check(layout_);
  shape_ = shape_of(layout_);
  head_bytes_ = layout_.block_size / kKeyTile * shape_.bytes;
  block_bytes_ = layout_.num_kv_heads * head_bytes_;
  layers_.reserve(static_cast<size_t>(layout_.num_layers));
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    const int64_t blocks = layout_.num_blocks[static_cast<size_t>(group_of(layer))];
    if (blocks > std::numeric_limits<int64_t>::max() / block_bytes_) throw std::bad_alloc();
    layers_.emplace_back(static_cast<size_t>(blocks * block_bytes_) + kOverread, true);
  }
}

void KVCache::clear() {
  for (Mapping& layer : layers_) layer.clear();
}

void KVCache::copy_block(int group, int64_t source, int64_t target) {
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    std::memmove(tile(layer, target, 0, 0), tile(layer, source, 0, 0),
                 static_cast<size_t>(block_bytes_));
  }
}

int64_t KVCache::export_size(int group) const {
  int64_t layers = 0;
  for (const int32_t other : layout_.layer_groups) layers += other == group;
  return 2 * layers * layout_.num_kv_heads * layout_.block_size * layout_.head_size;
}

void KVCache::export_block(int group, int64_t block, float* out) const {
  const int64_t size = layout_.head_size;
  float* values_out = out + export_size(group) / 2;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      for (int64_t p = 0; p < layout_.block_size; ++p, out += size, values_out += size) {
        load_token(layout_, shape_, tile(layer, block, head, p), p % kKeyTile, out, values_out);
      }
    }
  }
}

void KVCache::import_block(int group, int64_t block, const float* in) {
  const int64_t size = layout_.head_size;
  const float* values_in = in + export_size(group) / 2;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      for (int64_t p = 0; p < layout_.block_size; ++p, in += size, values_in += size) {
        store_token(layout_, shape_, tile(layer, block, head, p), p % kKeyTile, in, values_in);
      }
    }
  }
}

}  // namespace headrace
