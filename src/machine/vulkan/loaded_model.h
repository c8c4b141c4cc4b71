// machine/vulkan/loaded_model: a model's weights on the device.
//
// What    Matrices (tiles, in slices that fit one binding), vectors, rotary tables, and the lowered operations. load()
//         repacks weights on several threads into bounded staging memory; no second copy of them is made.
// Owns    the device memory of the weights. A cancelled or failed load frees all of it.
// Thread  immutable once loaded: contexts on several threads share it.
// Tests   tests/test_vulkan_model.cpp, tests/test_vulkan_families.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "lower.h"
#include "memory.h"
#include "repack.h"
#include "vulkan.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// A weight matrix on the device, or a stack of them (experts).
struct Matrix {
    Tiling tiling;
    struct Slice {
        Region region;
        uint32_t first = 0, n = 0;  ///< tile rows
    };
    std::vector<Slice> slices;  ///< more than one if the matrix exceeds a binding or an allocation
    bool empty() const { return slices.empty(); }
};

/// A rotary table: for each rotated pair, turns per position times 2^64 as two words, low word first.
struct Rope {
    uint32_t n_rot = 0;
    float base = 0;
    SlotId factors = kNoSlot;  ///< frequency factors: divisor of each pair's angle
    Region table;
};

class VulkanModel : public LoadedModel, public std::enable_shared_from_this<VulkanModel> {
  public:
    const Plan* plan = nullptr;
    OpenDeviceRef device;
    std::vector<Pair> pairs;
    std::vector<Matrix> matrices;  ///< by SlotId; an interleaved pair is at its gate's id
    std::vector<Region> vectors;   ///< by SlotId, f32; a router's region ends with the shared expert's gate
    std::vector<Rope> ropes;
    Region zeros;  ///< f32 zeros, as many as the widest row has values

    /// Uploads all weights. errors: unsupported, out_of_memory, cancelled, device_lost.
    static Result<std::shared_ptr<LoadedModel>> load(OpenDeviceRef device, const Plan& plan, const Weights& weights,
                                                     const Progress& progress);
    /// A model without weights, from which the memory of contexts can be planned.
    static Result<std::shared_ptr<VulkanModel>> bare(OpenDeviceRef device, const Plan& plan);
    /// A model whose weights have their shapes and places but no memory: lists can be built from it, but not recorded.
    static Result<std::shared_ptr<VulkanModel>> outline(OpenDeviceRef device, const Plan& plan);
    /// Adds the memory that load() would take to `items`, by number format.
    static Status plan_weights(OpenDeviceRef device, const Plan& plan, std::vector<MemoryItem>* items);

    /// The lowered operations of a tape, in order; fill_only: of its first n_fill operations.
    const std::vector<Node>& nodes(const Tape& tape, bool fill_only = false) const {
        return nodes_[fill_only][tape_index(tape)];
    }
    /// 0 for the trunk, 1 + i for MTP block i.
    uint32_t tape_index(const Tape& tape) const;

    Result<std::unique_ptr<Context>> open(const ContextOptions& options) override;
    uint64_t weight_bytes() const override { return n_weight_bytes_; }
    /// True if OpenDevice::small_bytes keeps this model off the matrix units.
    bool small() const { return n_weight_bytes_ <= device->small_bytes; }
    const Region* rope(const Op& op) const;

    /// The rows of draft_table() in the file; null unless the weights' bytes outlive the load.
    const std::byte* draft_rows = nullptr;

  private:
    struct Uploads;
    Status lay_out(Uploads* to);
    Memory memory_;
    std::vector<std::vector<Node>> nodes_[2];  ///< [fill_only][tape_index()]
    uint64_t n_weight_bytes_ = 0;
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
