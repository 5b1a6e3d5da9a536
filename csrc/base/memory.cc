#include "base/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace headrace {

Mapping::Mapping(size_t bytes, bool huge) {
  if (bytes == 0) return;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  if (huge) madvise(address, bytes, MADV_HUGEPAGE);  // a hint: failure changes nothing
  data_ = static_cast<std::byte*>(address);
  size_ = bytes;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace headrace
