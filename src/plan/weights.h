// plan/weights: the bytes of each weight slot.
//
// Owns    the match between the weight slots of a plan and the tensors of a file.
// Thread  no shared state.
// Tests   tests/test_plan.cpp, tests/test_families.cpp (fused tensors)
#pragma once
#include "../base/gguf.h"
#include "plan.h"

#include <functional>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct Weights {
    /// By SlotId: the rows, which are contiguous in the file; null for slots in `pieces` and those that are not
    /// weights.
    std::vector<const std::byte*> data;
    /// By SlotId: the rows of slots that are not contiguous in the file, in their order; empty for others.
    std::vector<std::vector<Span<const std::byte>>> pieces;
    bool keep = false;  ///< the file's bytes outlive the LoadedModel, so a back end may use them in place
    /// Takes bytes of the file out of memory; may be empty. They can still be read.
    std::function<void(const std::byte* rows, uint64_t n_byte)> release;
    /// A file for the weights as a back end packs them, LoadOptions::packed_file; empty: none.
    std::string packed_file;
    uint64_t stamp = 0;  ///< of the files that the weights are from: their sizes, and when they were last written
    std::function<void(const std::string&)> warn;  ///< what does not keep the model from running; may be empty
    bool keeps(SlotId id) const { return keep && data[id] != nullptr; }  ///< may be used in place

    /// Copies `n` bytes of a slot's rows, from byte `at` on.
    void read(SlotId id, uint64_t at, uint64_t n, std::byte* to) const;
    /// A slot's rows, one after the other: in the file, or copied to `room`, which is taken from `from` then and is to
    /// be freed before the next slot's.
    ///
    /// errors    out_of_memory.
    Result<const std::byte*> rows(SlotId id, const Allocator& from, Block* room) const;
    /// To be called once a slot's rows, `n_byte` in all, are not needed any more: their pages need not stay in memory.
    void done(SlotId id, uint64_t n_byte) const;
};

/// Where every weight slot of the plan is. Reads no tensor.
///
/// errors    bad_file: a tensor is missing.
Result<Weights> find_weights(const Plan& plan, const Gguf& file);

/// Refuses vectors (norms, biases, convolutions, decays: whatever an operation reads value by value) that hold a value
/// which is not finite: every logit would be NaN. Matrices are not read.
///
/// errors    bad_file: names the tensor and the first such value.
Status check_vectors(const Plan& plan, const Weights& weights);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
