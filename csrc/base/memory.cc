#include "base/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace headrace {

namespace {

// Fresh pages, at `address` if it is not null (what is mapped there is replaced).
std::byte* map_pages(void* address, size_t bytes, bool huge) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(address, bytes, PROT_READ | PROT_WRITE,
                      address == nullptr ? flags : flags | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  if (huge) madvise(mapped, bytes, MADV_HUGEPAGE);  // a hint: failure changes nothing
  return static_cast<std::byte*>(mapped);
}

}  // namespace

Mapping::Mapping(size_t bytes, bool huge) {
  if (bytes == 0) return;
  data_ = map_pages(nullptr, bytes, huge);
  size_ = bytes;
  is_huge_ = huge;
}

void Mapping::clear() {
  if (data_ != nullptr) map_pages(data_, size_, is_huge_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      is_huge_(other.is_huge_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(is_huge_, other.is_huge_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace headrace
