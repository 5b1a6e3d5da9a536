// Counting the tokens of a history.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/simd.h"

namespace headrace::HR_ISA {

// Memory for counting tokens: which ids were seen, and (valid only for these) how often.
struct Counts {
  uint32_t* seen;  // [ceil(V / 32)]
  int32_t* times;  // [V]

  HR_INLINE void clear(int size) const {
    std::memset(seen, 0, sizeof(uint32_t) * static_cast<size_t>((size + 31) / 32));
  }
  // True the first time that it is called with this id after `clear`.
  HR_INLINE bool is_first(int32_t id) const {
    const uint32_t bit = 1u << (id & 31);
    const bool is_new = (seen[id >> 5] & bit) == 0;
    seen[id >> 5] |= bit;
    return is_new;
  }
};

// Ids outside the vocabulary (media placeholders) have no logit and are passed over.
HR_INLINE bool is_token(int32_t id, int size) {
  return static_cast<uint32_t>(id) < static_cast<uint32_t>(size);
}

}  // namespace headrace::HR_ISA
