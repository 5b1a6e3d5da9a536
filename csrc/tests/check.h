// A few lines instead of a test framework: CHECK counts and reports, main returns whether anything
// failed.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <random>

#include "base/isa.h"

namespace headrace::tests {

// Those that this machine lacks have no kernels.
inline constexpr Isa kIsas[] = {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon};

inline std::atomic<int> failures = 0;
inline std::atomic<int64_t> checks = 0;

#define CHECK(condition, ...)                                     \
  do {                                                            \
    ++headrace::tests::checks;                                    \
    if (!(condition)) {                                           \
      ++headrace::tests::failures;                                \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (false)

void test_pool();
void test_dot();
void test_linear();
void test_tiles();
void test_program();
void test_attention();
void test_sampling();

}  // namespace headrace::tests
