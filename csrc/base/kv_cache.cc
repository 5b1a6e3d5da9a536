#include "base/kv_cache.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/half.h"

namespace headrace {
namespace {

void require(bool condition, const char* sentence) {
  if (!condition) throw std::invalid_argument(std::string("KV cache: ") + sentence);
}

void check(const KVLayout& layout) {
  require(layout.num_layers > 0 && layout.num_kv_heads > 0 && layout.head_size > 0,
          "layers, KV heads and head size must be positive");
  require(layout.head_size <= 1024, "head sizes above 1024 are not supported");
  require(layout.block_size > 0 && layout.block_size % kKeyTile == 0 &&
              kAttentionChunk % layout.block_size == 0,
          "the block size must be a multiple of 16 that divides 512");
  require(layout.dtype != DType::kQ8, "the dtype must be f32, bf16 or f16");
  require(static_cast<int32_t>(layout.layer_groups.size()) == layout.num_layers,
          "every layer needs a group");
  for (const int32_t group : layout.layer_groups) {
    require(group >= 0 && group < static_cast<int32_t>(layout.num_blocks.size()),
            "a layer names a group that does not exist");
  }
  for (const int32_t count : layout.num_blocks) {
    require(count >= 0, "the number of blocks must not be negative");
  }
}

float read_element(const std::byte* data, int64_t index, DType dtype) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(data)[index];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[index];
  return dtype == DType::kBF16 ? float_from_bf16(bits) : float_from_f16(bits);
}

void write_element(std::byte* data, int64_t index, DType dtype, float value) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(data)[index] = value;
    return;
  }
  reinterpret_cast<uint16_t*>(data)[index] =
      dtype == DType::kBF16 ? bf16_from_float(value) : f16_from_float(value);
}

// Where element (g, p, d) of the canonical order lies in a block's keys; values lie canonically.
int64_t key_index(const KVLayout& layout, int64_t g, int64_t p, int64_t d) {
  const int64_t head = g * layout.block_size * layout.head_size;
  return head + (p / kKeyTile * layout.head_size + d) * kKeyTile + p % kKeyTile;
}

// Calls fn(canonical index, index in the block's keys) for every element of [G, P, D].
template <typename Fn>
void for_each_key(const KVLayout& layout, Fn fn) {
  int64_t canonical = 0;
  for (int64_t g = 0; g < layout.num_kv_heads; ++g) {
    for (int64_t p = 0; p < layout.block_size; ++p) {
      for (int64_t d = 0; d < layout.head_size; ++d) fn(canonical++, key_index(layout, g, p, d));
    }
  }
}

}  // namespace

KVCache::KVCache(KVLayout layout) : layout_(std::move(layout)) {
  check(layout_);
  block_bytes_ = 2 * layout_.num_kv_heads * head_bytes();
  layers_.reserve(static_cast<size_t>(layout_.num_layers));
  for (const int32_t group : layout_.layer_groups) {
    layers_.emplace_back(static_cast<size_t>(block_bytes_ * layout_.num_blocks[group]));
  }
}

void KVCache::copy_block(int group, int64_t source, int64_t target) {
  if (source == target) return;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    std::memcpy(keys(layer, target), keys(layer, source), static_cast<size_t>(block_bytes_));
  }
}

int64_t KVCache::export_size(int group) const {
  int64_t num_layers = 0;
  for (const int32_t layer_group : layout_.layer_groups) num_layers += layer_group == group;
  return 2 * num_layers * layout_.num_kv_heads * layout_.block_size * layout_.head_size;
}

void KVCache::export_block(int group, int64_t block, float* out) const {
  const int64_t size = int64_t{layout_.num_kv_heads} * layout_.block_size * layout_.head_size;
  float* out_keys = out;
  float* out_values = out + export_size(group) / 2;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    const std::byte* held_keys = keys(layer, block);
    const std::byte* held_values = values(layer, block);
    for_each_key(layout_, [&](int64_t canonical, int64_t tiled) {
      out_keys[canonical] = read_element(held_keys, tiled, layout_.dtype);
      out_values[canonical] = read_element(held_values, canonical, layout_.dtype);
    });
    out_keys += size;
    out_values += size;
  }
}

void KVCache::import_block(int group, int64_t block, const float* in) {
  const int64_t size = int64_t{layout_.num_kv_heads} * layout_.block_size * layout_.head_size;
  const float* in_keys = in;
  const float* in_values = in + export_size(group) / 2;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    std::byte* held_keys = keys(layer, block);
    std::byte* held_values = values(layer, block);
    for_each_key(layout_, [&](int64_t canonical, int64_t tiled) {
      write_element(held_keys, tiled, layout_.dtype, in_keys[canonical]);
      write_element(held_values, canonical, layout_.dtype, in_values[canonical]);
    });
    in_keys += size;
    in_values += size;
  }
}

}  // namespace headrace
