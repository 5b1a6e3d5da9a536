#include "base/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace headrace {

#if defined(__x86_64__)
namespace amx {
void linear(const LinearArgs&, OpContext&);
}

namespace {

bool bit(unsigned value, int index) { return (value >> index & 1u) != 0; }

// Which register files the system saves on a context switch (XCR0).
unsigned saved_registers() {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Whether this process may use the tile registers. Their 8 KB are saved for those who asked only.
bool is_allowed_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of the kernel's interface
  constexpr long kTileData = 18;               // component of the processor's state
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// AVX-512 but for the linears.
const KernelTable& amx_kernels() {
  static const KernelTable table = [] {
    KernelTable kernels = avx512::kKernels;
    kernels.linear = amx::linear;
    return kernels;
  }();
  return table;
}

}  // namespace

CpuFeatures detect_cpu() noexcept {
  CpuFeatures found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool has_fma = bit(c, 12), has_xsave = bit(c, 27), has_avx = bit(c, 28),
             has_f16c = bit(c, 29);
  if (!has_xsave || !has_avx) return found;
  const unsigned saved = saved_registers();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const bool saves_ymm = (saved & 0x6u) == 0x6u, saves_zmm = (saved & 0xe6u) == 0xe6u;
  found.has_avx2 = saves_ymm && has_fma && has_f16c && bit(b, 5) && bit(b, 8);
  const bool has_512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F, DQ, BW, VL
  const bool has_vnni = bit(c, 11);
  found.has_avx512 = found.has_avx2 && saves_zmm && has_512 && has_vnni;
  const bool saves_tiles = (saved & 0x60000u) == 0x60000u;  // their configuration and their data
  const bool has_tiles = bit(d, 24) && bit(d, 25);          // TILE, INT8
  found.has_amx = found.has_avx512 && saves_tiles && has_tiles && is_allowed_tiles();
  if (found.has_avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    found.has_avx512_bf16 = bit(a, 5);
  return found;
}

const KernelTable* find_kernels(Isa isa, const CpuFeatures& cpu) {
  switch (isa) {
    case Isa::kAmx:
      return cpu.has_amx ? &amx_kernels() : nullptr;
    case Isa::kAvx512:
      return cpu.has_avx512 ? &avx512::kKernels : nullptr;
    case Isa::kAvx2:
      return cpu.has_avx2 ? &avx2::kKernels : nullptr;
    case Isa::kGeneric:
      return &generic::kKernels;
    default:
      return nullptr;
  }
}
#elif defined(__aarch64__)
CpuFeatures detect_cpu() noexcept {
  CpuFeatures found;
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP of the kernel's interface
  found.has_neon = (getauxval(AT_HWCAP) & kDotProducts) != 0;
#elif defined(__APPLE__)
  found.has_neon = true;  // since the first of their processors that run this system
#endif
  return found;
}

const KernelTable* find_kernels(Isa isa, const CpuFeatures& cpu) {
  switch (isa) {
    case Isa::kNeon:
      return cpu.has_neon ? &neon::kKernels : nullptr;
    case Isa::kGeneric:
      return &generic::kKernels;
    default:
      return nullptr;
  }
}
#else
CpuFeatures detect_cpu() noexcept { return {}; }

const KernelTable* find_kernels(Isa isa, const CpuFeatures&) {
  return isa == Isa::kGeneric ? &generic::kKernels : nullptr;
}
#endif

}  // namespace headrace
