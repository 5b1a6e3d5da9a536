// Runs what per_isa/dot.cc compiles, for each instruction set of this machine.
#include "base/isa.h"
#include "tests/check.h"

namespace headrace {

namespace generic {
void test_dot();
}
namespace avx2 {
void test_dot();
}
namespace avx512 {
void test_dot();
}

namespace neon {
void test_dot();
}

namespace tests {

void test_dot() {
  generic::test_dot();
#if defined(__x86_64__)
  const CpuFeatures cpu = detect_cpu();
  if (find_kernels(Isa::kAvx2, cpu) != nullptr) avx2::test_dot();
  if (find_kernels(Isa::kAvx512, cpu) != nullptr) avx512::test_dot();
#elif defined(__aarch64__)
  if (find_kernels(Isa::kNeon, detect_cpu()) != nullptr) neon::test_dot();
#endif
}

}  // namespace tests
}  // namespace headrace
