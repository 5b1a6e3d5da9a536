// Anonymous memory: zeroed, touched lazily, given back on destruction.
#pragma once

#include <cstddef>

namespace headrace {

class Mapping {
 public:
  Mapping() = default;
  // Throws std::bad_alloc. `huge` asks for huge pages where the system grants them.
  explicit Mapping(size_t bytes, bool huge = false);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Gives the pages back: the same addresses read as zeros again and take memory when written.
  // Throws std::bad_alloc where the system refuses; then nothing has changed.
  void clear();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool is_huge_ = false;
};

}  // namespace headrace
