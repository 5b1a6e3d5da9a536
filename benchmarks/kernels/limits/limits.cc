// What this machine can do: memory read and arithmetic of an instruction set, with some threads.
//
//   limits ISA THREADS
//
// Prints one line a limit: its name and billions of bytes or operations a second, the best of
// several runs. A limit that the machine or this program does not know is left out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kBytes = int64_t{128} << 20;  // past every cache
constexpr int64_t kRounds = 1 << 18;  // about a millisecond: short enough to run undisturbed once
constexpr int kChains = 12;           // more than latency times throughput
constexpr int kTries = 60;

// Seconds of the slowest of `threads` that run `work(thread)` at once; the best of a few times.
template <typename Work>
double measure(int threads, const Work& work) {
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
    for (std::thread& other : others) other.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

void show(const char* name, double amount, double seconds) {
  std::printf("%s %.1f\n", name, amount / seconds / 1e9);
}

void measure_memory(int threads) {
  std::vector<uint64_t> words(kBytes / 8, 1);
  const auto share = static_cast<int64_t>(words.size()) / threads;
  show("memory", static_cast<double>(share * threads * 8), measure(threads, [&](int thread) {
         const uint64_t* p = words.data() + thread * share;
         uint64_t sum[8] = {};
         for (int64_t i = 0; i + 8 <= share; i += 8) {
           for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
         }
         asm volatile("" ::"m"(sum));
       }));
}

#if defined(__x86_64__)
#define LIMIT_LOOP(zero, step)                                                 \
  do {                                                                         \
    _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) sums[c] = zero; \
    for (int64_t i = 0; i < kRounds; ++i) {                                    \
      _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) {             \
        auto& sum = sums[c];                                                   \
        sum = step;                                                            \
        asm volatile("" : "+v"(sum));                                          \
      }                                                                        \
    }                                                                          \
  } while (false)

__attribute__((target("avx512f,avx512vnni"))) void int8_avx512(int) {
  __m512i sums[kChains];
  const __m512i x = _mm512_set1_epi8(3);
  LIMIT_LOOP(_mm512_setzero_si512(), _mm512_dpbusd_epi32(sum, x, x));
}
__attribute__((target("avx512f,avx512bf16"))) void bf16_avx512(int) {
  __m512 sums[kChains];
  const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80);
  LIMIT_LOOP(_mm512_setzero_ps(), _mm512_dpbf16_ps(sum, x, x));
}
__attribute__((target("avx512f"))) void f32_avx512(int) {
  __m512 sums[kChains];
  const __m512 x = _mm512_set1_ps(1.0f);
  LIMIT_LOOP(_mm512_setzero_ps(), _mm512_fmadd_ps(x, x, sum));
}
__attribute__((target("avx2,fma"))) void f32_avx2(int) {
  __m256 sums[kChains];
  const __m256 x = _mm256_set1_ps(1.0f);
  LIMIT_LOOP(_mm256_setzero_ps(), _mm256_fmadd_ps(x, x, sum));
}
// The product and the 16-bit sum that it needs.
__attribute__((target("avx2"))) void int8_avx2(int) {
  __m256i sums[kChains];
  __m256i x = _mm256_set1_epi8(3);
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < kRounds; ++i) {
    _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) {
      auto& sum = sums[c];
      asm volatile("" : "+v"(x));
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, x));
      asm volatile("" : "+v"(sum));
    }
  }
}

void measure_arithmetic(const std::string& isa, int threads) {
  const double steps = static_cast<double>(kRounds) * kChains * threads;
  if (isa == "avx512" && __builtin_cpu_supports("avx512vnni")) {
    show("int8", steps * 128, measure(threads, int8_avx512));
    show("f32", steps * 32, measure(threads, f32_avx512));
    if (__builtin_cpu_supports("avx512bf16")) {
      show("bf16", steps * 64, measure(threads, bf16_avx512));
    }
  } else if (isa == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    show("int8", steps * 64, measure(threads, int8_avx2));
    show("f32", steps * 16, measure(threads, f32_avx2));
  }
}
#else
void measure_arithmetic(const std::string&, int) {}
#endif

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const int threads = std::clamp(std::atoi(arguments[2]), 1, 1024);
  measure_memory(threads);
  measure_arithmetic(arguments[1], threads);
}
