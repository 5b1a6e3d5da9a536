// Instruction sets: what this machine has, and which kernels serve a set.
#pragma once

#include <cstdint>

#include "base/kernels.h"

namespace headrace {

enum class Isa : uint8_t { kGeneric, kAvx2, kAvx512, kAmx, kNeon };

struct CpuFeatures {
  bool has_avx2 = false;         // AVX2, FMA, F16C, BMI2, and a system that saves the registers
  bool has_avx512 = false;       // F, BW, DQ, VL, VNNI, likewise
  bool has_avx512_bf16 = false;  // vdpbf16ps on top of has_avx512
  bool has_amx = false;          // tiles of bytes on top of has_avx512, allowed by the system
  bool has_neon = false;         // 64-bit Arm with dot products of bytes (Armv8.2)
};

// Asks the system for the tile registers where the CPU has them: once allowed, they are for all
// threads of the process.
CpuFeatures detect_cpu() noexcept;

// The kernels of a set, or null when this build or machine lacks it.
const KernelTable* find_kernels(Isa isa, const CpuFeatures& cpu);

}  // namespace headrace
