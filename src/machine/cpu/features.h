// machine/cpu/features: what this processor can do, and how many cores it has.
//
// Owns    detection at run time; which code this compiler can build (AUSPEX_HAS_*).
// Thread  any; no state.
// Tests   tests/test_matmul.cpp.
#pragma once
#include "../../base/base.h"

// Instruction sets this compiler can build for; the processor decides at run time among them.
#if !defined(AUSPEX_NO_SIMD) && (defined(__x86_64__) || defined(_M_X64))
#define AUSPEX_HAS_X86 1
#else
#define AUSPEX_HAS_X86 0
#endif
#if AUSPEX_HAS_X86 && !defined(AUSPEX_NO_AVX512)
#define AUSPEX_HAS_AVX512 1
#else
#define AUSPEX_HAS_AVX512 0
#endif
// NEON code is written for little-endian AArch64.
#if !defined(AUSPEX_NO_SIMD) && defined(__aarch64__) && !defined(__AARCH64EB__)
#define AUSPEX_HAS_NEON 1
#else
#define AUSPEX_HAS_NEON 0
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// True only if the processor has the instructions and the operating system saves their registers.
struct CpuFeatures {
    bool avx2 = false;     ///< AVX2, FMA and F16C
    bool avx512 = false;   ///< the above and AVX-512 F, BW, VL, DQ and VNNI
    bool neon = false;     ///< AArch64 Advanced SIMD
    bool dotprod = false;  ///< Armv8.2 dot products of bytes
};
/// cost      a few cpuid instructions or system calls: call it once.
CpuFeatures cpu_features();

/// Processor cores this process may run on, counting two hardware threads of one core once; at least 1.
uint32_t n_physical_core();

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
