// machine/cpu/features: which code path this processor can run.
//
// Owns    feature detection; the names of the paths.
// Reads   the door's CpuPath.
// Serves  cpu, matmul, tests.
// Thread  any; no state.
// Laws    a path is offered only when the processor and the operating system both support it.
#pragma once
#include "../../base/base.h"

// The paths that this compiler can build; the processor decides at run time among them.
#if !defined(AUSPEX_NO_SIMD) && (defined(__x86_64__) || defined(_M_X64))
#define AUSPEX_HAS_X86 1
#else
#define AUSPEX_HAS_X86 0
#endif
// NEON code is written for little-endian AArch64.
#if !defined(AUSPEX_NO_SIMD) && defined(__aarch64__) && !defined(__AARCH64EB__)
#define AUSPEX_HAS_NEON 1
#else
#define AUSPEX_HAS_NEON 0
#endif

namespace auspex {
namespace detail {

/// "avx512": the name of a path.
const char* path_name(CpuPath path);
/// True when this build has the path and this processor runs it. `best` and `reference` always.
/// avx512 needs AVX-512 F, BW, VL, DQ and VNNI; avx2 needs AVX2, FMA and F16C; neon needs dotprod.
bool has_path(CpuPath path);
/// The fastest path of this processor; never `best`.
CpuPath best_path();
/// `best` becomes best_path(); any other path itself.
/// errors    unsupported: this processor or build lacks it; the text lists what there is.
Status choose_path(CpuPath wanted, CpuPath* out);
/// Processor cores this process may run on, counting two hardware threads of one core once; at least 1.
uint32_t n_physical_core();

}  // namespace detail
}  // namespace auspex
