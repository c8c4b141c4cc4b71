// machine/cpu/kernels: one table of functions per instruction set, and the choice among them.
//
// Owns    CpuKernels, the list of instruction sets, CpuPath's names.
// Thread  tables are constants; everything here may be called from any thread.
// Tests   tests/test_matmul.cpp, tests/test_ops.cpp: every table this processor runs.
//
// To add an instruction set: write simd_NAME.cpp (the vocabulary of kernels.inl), list NAME in AUSPEX_KERNELS below,
// the file in src/auspex.cpp, and what it needs in CpuFeatures. A CpuPath may have several tables that give the same
// bits (NEON with and without dot products): the first one that runs is taken.
#pragma once
#include "features.h"
#include "ops.h"
#include "pack.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What one instruction set provides. Matrices remember their table, so a step never asks the processor.
struct CpuKernels {
    const char* name;
    CpuPath path;
    bool (*runs)(const CpuFeatures&);
    uint32_t n_lane;    ///< output rows of a strip; 0: every type is held as plain rows
    bool biased_bytes;  ///< byte codes are stored 128 above the file's, to be unsigned
    bool words;         ///< activations are words instead of two columns of bytes (Int16Block)
    Loops loops;
    /// x [32 n_block] f32 to 16-bit integers; null without strips.
    void (*quantise)(const float* x, uint32_t n_block, Int16Block* to);
    /// Rows r0 .. r1 of a product with strips, r0 a multiple of n_lane; null without strips.
    void (*strips)(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0,
                   uint32_t r1);
    /// The same with plain rows, in float.
    void (*plain)(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0,
                  uint32_t r1);
};

// Fastest first. The reference comes last: it runs everywhere.
#define AUSPEX_KERNELS(entry) entry(avx512) entry(avx2) entry(neon_dotprod) entry(neon) entry(reference)

/// NAME_kernels(): the table of one instruction set, or null if this build lacks it.
#define AUSPEX_DECLARE(name) const CpuKernels* name##_kernels();
AUSPEX_KERNELS(AUSPEX_DECLARE)
#undef AUSPEX_DECLARE

/// A few tables, fastest first.
struct KernelList {
    const CpuKernels* table[8] = {};
    uint32_t n = 0;
    const CpuKernels* const* begin() const { return table; }
    const CpuKernels* const* end() const { return table + n; }
};
/// Tables that this build has and this processor runs.
KernelList runnable_kernels();
/// The table that a path uses on this processor, or null; `best`: the fastest.
const CpuKernels* kernels_for(CpuPath path);
/// errors    unsupported: this processor or build lacks the path; the text lists what there is.
Status choose_kernels(CpuPath wanted, const CpuKernels** out);

/// "avx512": the name of a path.
const char* path_name(CpuPath path);
/// Whether this build has the path and this processor runs it. `best` and `reference` always.
bool has_path(CpuPath path);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
