// machine/cpu/cpu: the CPU as a machine: packs weights, walks tapes.
//
// Owns    CpuBackend, its LoadedModel and Context: memory layout, order of ops, barriers between them.
// Reads   backend, ops, matmul, pool.
// Serves  engine.
// Thread  a Context is used by one thread; all Lanes of a machine take turns on its pool.
// Laws    Row, Commit, Chunk, HotPath: tests/test_invariants.cpp over every path.
#pragma once
#include "../backend.h"
#include "ops.h"

namespace auspex {
namespace detail {

struct CpuOptions {
    CpuPath path = CpuPath::best;
    int n_thread = 0;  ///< 0: one per physical core
    Allocator allocator;
};

/// errors    bad_argument (n_thread), unsupported (a path that this processor lacks), out_of_memory.
Result<std::shared_ptr<Backend>> open_cpu(const CpuOptions& options);

}  // namespace detail
}  // namespace auspex
