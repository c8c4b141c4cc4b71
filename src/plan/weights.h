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
    std::vector<const std::byte*> data;  ///< by SlotId; null for slots that are not weights
    bool keep = false;  ///< the file's bytes outlive the LoadedModel, so a back end may use them in place
    /// Copies of rows that are not contiguous in the file; freed with this object.
    std::vector<Block> gathered;
    std::vector<bool> is_gathered;
    /// A back end calls it with a slot's rows once it needs them no more, so that their pages need not stay in memory;
    /// may be empty. The rows can still be read.
    std::function<void(const std::byte* rows, uint64_t n_byte)> release;
    /// A file for the weights as a back end packs them, LoadOptions::packed_file; empty: none.
    std::string packed_file;
    uint64_t stamp = 0;  ///< of the files that the weights are from: their sizes, and when they were last written
    std::function<void(const std::string&)> warn;  ///< what does not keep the model from running; may be empty
    bool keeps(SlotId id) const { return keep && !(id < is_gathered.size() && is_gathered[id]); }
};

/// The bytes of every weight slot of the plan.
///
/// errors    bad_file: a tensor is missing; out_of_memory.
/// cost      look-ups, and a copy of each slot whose rows are not contiguous.
Result<Weights> find_weights(const Plan& plan, const Gguf& file);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
