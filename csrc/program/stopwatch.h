// Time since it was made, for profiles.
#pragma once

#include <chrono>
#include <cstdint>

namespace headrace {

class Stopwatch {
 public:
  int64_t nanoseconds() const {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace headrace
