// machine/vulkan/lower: turns a tape into a list of kernels and fuses neighbouring operations.
//
// What    Fuses norms into the products that read them, residual additions into the products before them, gate, up and
//         activation into one product, and KV cache writes into attention. An operation that no pattern matches gets a
//         kernel of its own, or lower() fails and names it; none is skipped.
// Thread  pure functions; no device, no bytes.
// Tests   tests/test_vulkan_model.cpp, tests/test_dispatch_list.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../backend.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// A gate and an up matrix, stored interleaved on the device: eight rows of one, eight of the other.
struct Pair {
    SlotId gate = kNoSlot, up = kNoSlot;
};
/// All gate and up matrices, those of experts too, that are only ever used together, in a swiglu.
std::vector<Pair> find_pairs(const Plan& plan);

/// A lowered operation: one kernel, or several that always run together.
struct Node {
    enum class Kind : uint8_t {
        embed,    ///< y = rows of the embedding table, and their sums of squares
        given,    ///< y = the hidden rows that the step brings, with an optional norm
        norm,     ///< y[offset..] = rms(x) * w
        product,  ///< y = x w', with an optional norm of x and an epilogue
        swiglu,   ///< y = silu(x) * x2, not fused
        delta,    ///< a whole DeltaNet layer
        append,   ///< writes keys and values only: rows that fill an MTP cache
        attend,   ///< writes keys and values (`write`), then attention
        experts,  ///< y += a whole layer of experts
    };
    enum class Epilogue : uint8_t { store, add, swiglu };
    Kind kind = Kind::embed;
    uint32_t layer = 0;
    const Op* op = nullptr;     ///< the operation that has shapes and weights
    const Op* write = nullptr;  ///< attend: the kv_write fused into it
    SlotId x = kNoSlot, x2 = kNoSlot, y = kNoSlot;
    SlotId weight = kNoSlot;  ///< product: the matrix; for a pair, the gate
    SlotId norm = kNoSlot;    ///< weight of the norm, or of the one applied to x; or kNoSlot
    float eps = 0;
    Epilogue epilogue = Epilogue::store;
    bool onto_self = false;  ///< add: y += x w'; false: y = 0 + x w', an add only for its sums of squares
    bool squares = false;    ///< a later norm needs the sums of squares of y
    bool head = false;       ///< runs only on rows whose logits are needed
};

/// Shapes with a specialised kernel; the others run on a general one, and all do without OpenDevice::shuffles.
inline bool fast_delta(bool shuffles, const DeltaDims& d) {
    return shuffles && d.d_key == 128 && d.d_val == 128 && d.n_conv == 4;
}
inline bool fast_attend(bool shuffles, const AttnDims& a) {
    return shuffles && (a.d_head == 128 || a.d_head == 256) && a.n_rot % 8 == 0;
}

/// Lowers a tape; fill_only: its first n_fill operations.
///
/// errors    unsupported: no kernel runs an operation; the text names it and its shape.
Result<std::vector<Node>> lower(const Plan& plan, const Tape& tape, const std::vector<Pair>& pairs, bool fill_only);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
