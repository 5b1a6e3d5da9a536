// Native tests, meant for the sanitizers: `make check-native`.
#include "tests/check.h"

int main() {
  using namespace headrace::tests;
  test_pool();
  test_dot();
  test_linear();
  test_tiles();
  test_program();
  test_attention();
  test_sampling();
  std::printf("%lld checks, %d failures\n", static_cast<long long>(checks.load()), failures.load());
  return failures == 0 ? 0 : 1;
}
