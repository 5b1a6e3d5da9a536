#include "base/kernels.h"

namespace headrace {

std::byte* OpContext::scratch(size_t bytes) {
  if (bytes > scratch_.size()) scratch_ = Mapping(bytes + bytes / 2);
  return scratch_.data();
}

}  // namespace headrace
