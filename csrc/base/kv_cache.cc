#include "base/kv_cache.h"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/half.h"

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
    throw std::invalid_argument("Keys and values are f32, bf16 or f16.");
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

void widen(const std::byte* in, DType dtype, int64_t count, float* out) {
  const auto* half = reinterpret_cast<const uint16_t*>(in);
  switch (dtype) {
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_from_bf16(half[i]);
      break;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_from_f16(half[i]);
      break;
    default:
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
  }
}

void narrow(const float* in, DType dtype, int64_t count, std::byte* out) {
  auto* half = reinterpret_cast<uint16_t*>(out);
  switch (dtype) {
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) half[i] = bf16_from_float(in[i]);
      break;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) half[i] = f16_from_float(in[i]);
      break;
    default:
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
  }
}

// Calls fn(canonical, tiled) for every element of a block's keys: where (g, p, d) lies in [G, P, D]
// and in [G, P / 16, D, 16].
template <typename Fn>
void for_each_key(const KVLayout& layout, Fn fn) {
  const int64_t size = layout.head_size, block_size = layout.block_size;
  int64_t canonical = 0;
  for (int64_t g = 0; g < layout.num_kv_heads; ++g) {
    for (int64_t p = 0; p < block_size; ++p) {
      const int64_t first = (g * block_size + p / kKeyTile * kKeyTile) * size + p % kKeyTile;
      for (int64_t d = 0; d < size; ++d) fn(canonical++, first + d * kKeyTile);
    }
  }
}

}  // namespace

KVCache::KVCache(KVLayout layout) : layout_(std::move(layout)) {
  check(layout_);
  block_bytes_ = 2 * layout_.num_kv_heads * head_bytes();
  layers_.reserve(static_cast<size_t>(layout_.num_layers));
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    const int64_t blocks = layout_.num_blocks[static_cast<size_t>(group_of(layer))];
    if (blocks > std::numeric_limits<int64_t>::max() / block_bytes_) throw std::bad_alloc();
    layers_.emplace_back(static_cast<size_t>(blocks * block_bytes_) + kOverread);
  }
}

void KVCache::copy_block(int group, int64_t source, int64_t target) {
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    std::memmove(keys(layer, target), keys(layer, source), static_cast<size_t>(block_bytes_));
  }
}

int64_t KVCache::export_size(int group) const {
  int64_t layers = 0;
  for (const int32_t other : layout_.layer_groups) layers += other == group;
  return layers * block_bytes_ / element_size();
}

void KVCache::export_block(int group, int64_t block, float* out) const {
  const int64_t count = block_bytes_ / element_size() / 2;  // of keys, and of values
  std::vector<float> tiled(static_cast<size_t>(count));
  float* values_out = out + export_size(group) / 2;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    widen(keys(layer, block), layout_.dtype, count, tiled.data());
    for_each_key(layout_, [&](int64_t canonical, int64_t at) {
      out[canonical] = tiled[static_cast<size_t>(at)];
    });
    widen(values(layer, block), layout_.dtype, count, values_out);
    out += count;
    values_out += count;
  }
}

void KVCache::import_block(int group, int64_t block, const float* in) {
  const int64_t count = block_bytes_ / element_size() / 2;
  std::vector<float> tiled(static_cast<size_t>(count));
  const float* values_in = in + export_size(group) / 2;
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    if (group_of(layer) != group) continue;
    for_each_key(layout_, [&](int64_t canonical, int64_t at) {
      tiled[static_cast<size_t>(at)] = in[canonical];
    });
    narrow(tiled.data(), layout_.dtype, count, keys(layer, block));
    narrow(values_in, layout_.dtype, count, values(layer, block));
    in += count;
    values_in += count;
  }
}

}  // namespace headrace
