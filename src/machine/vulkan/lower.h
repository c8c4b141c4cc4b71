// machine/vulkan/lower: a tape of the plan becomes a list of kernels, fused where neighbours allow it.
//
// What    The patterns: norms are fused into the products that read them, residuals into the products that feed them,
//         gate, up and activation into one product, cache writes into attention. An operation that no pattern matches
//         is run by a plain kernel or refused by name, never skipped.
// Thread  pure functions; no device, no bytes.
// Tests   tests/test_vulkan_model.cpp, tests/test_dispatch_list.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../backend.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// A gate and an up matrix that live interleaved on the device, eight rows each in turn.
struct Pair {
    SlotId gate = kNoSlot, up = kNoSlot;
};
/// Every gate and up whose product is always swiglu of both, those of experts too.
std::vector<Pair> find_pairs(const Plan& plan);

/// One kernel, or one group of kernels that always goes together.
struct Node {
    enum class Kind : uint8_t {
        embed,    ///< y = rows of the table, and their sums of squares
        given,    ///< y = the hidden rows the step is fed with
        norm,     ///< y[offset..] = rms(x) * w
        product,  ///< y = x w' (after a norm; onto a residual; with swiglu)
        swiglu,   ///< y = silu(x) * x2, on its own
        delta,    ///< a whole DeltaNet layer
        append,   ///< keys and values into the cache, without attention (cache-filling rows)
        attend,   ///< attention, and what it appends to the cache before (`write`)
        experts,  ///< a whole layer of experts, onto y
    };
    enum class Epilogue : uint8_t { store, add, swiglu };
    Kind kind = Kind::embed;
    uint32_t layer = 0;
    const Op* op = nullptr;     ///< where shapes and weights stand
    const Op* write = nullptr;  ///< attend: the kv_write that goes with it
    SlotId x = kNoSlot, x2 = kNoSlot, y = kNoSlot;
    SlotId weight = kNoSlot;  ///< product: the matrix; of a pair, its gate
    SlotId norm = kNoSlot;    ///< product, experts: x is normed with this weight on the way in
    float eps = 0;
    Epilogue epilogue = Epilogue::store;
    bool onto_self = false;  ///< add: y += ...; else y = 0 + ..., for the sums of squares
    bool squares = false;    ///< the sums of squares of y are wanted by a later norm
    bool head = false;       ///< only rows whose logits are wanted
};

/// Shapes that have kernels of their own; others run on plain ones.
inline bool fast_delta(const DeltaDims& d) { return d.d_key == 128 && d.d_val == 128 && d.n_conv == 4; }
inline bool fast_attend(const AttnDims& a) { return (a.d_head == 128 || a.d_head == 256) && a.n_rot % 8 == 0; }

/// The kernels of a tape, in order. fill_only: of an MTP tape's first n_fill ops.
///
/// errors    unsupported: an op that this machine has no kernel for, by name, with its dims.
Result<std::vector<Node>> lower(const Plan& plan, const Tape& tape, const std::vector<Pair>& pairs, bool fill_only);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
