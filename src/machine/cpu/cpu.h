// machine/cpu/cpu: the CPU as a back end.
//
// Owns    open_cpu(): loading and packing of weights, plans of what a model and a context take.
// Thread  a Context is used by one thread at a time; all contexts of a back end take turns on its pool.
// Tests   tests/test_invariants.cpp over every path: row invariance, commit equivalence, chunk invariance, hot path;
//         tests/test_memory_plan.cpp: planned memory.
#pragma once
#include "../backend.h"
#include "ops.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct CpuOptions {
    CpuPath path = CpuPath::best;
    int n_thread = 0;  ///< 0: one per physical core
    Allocator allocator;
    JobSystem jobs;
};

/// errors    bad_argument (n_thread), unsupported (a path that this processor lacks).
Status check_cpu(CpuPath path, int n_thread);
/// errors    those of check_cpu(), out_of_memory.
Result<std::shared_ptr<Backend>> open_cpu(const CpuOptions& options);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
