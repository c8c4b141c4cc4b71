// plan/weights: the manifest, which tensor fills which slot, in which shape.
//
// Owns    the match between weight slots and the file's tensors, and every complaint about it.
// Reads   plan, gguf.
// Serves  arch_* (which declare slots through it), machines (which read the bytes).
// Thread  none of its own.
// Laws    tests/test_plan.cpp: a missing or misshapen tensor is named, with both shapes.
#pragma once
#include "../base/gguf.h"
#include "plan.h"

namespace auspex {
namespace detail {

/// The bytes behind each weight slot, by SlotId; null for other roles.
struct Weights {
    std::vector<const std::byte*> data;
    bool keep = false;  ///< the file's bytes outlive the LoadedModel, so a machine may use them in place
    /// Those whose rows had to be gathered; they end with this object.
    std::vector<Block> gathered;
    std::vector<bool> is_gathered;
    bool keeps(SlotId id) const { return keep && !(id < is_gathered.size() && is_gathered[id]); }
};

/// Fills every weight slot of the plan. errors: bad_file naming slot, expected and found shape; out_of_memory.
/// cost      nothing but look-ups, and one copy of what Slot::rows takes from more than one place.
Result<Weights> find_weights(const Plan& plan, const Gguf& file);

}  // namespace detail
}  // namespace auspex
