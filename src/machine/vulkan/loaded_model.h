// machine/vulkan/loaded_model: a model's weights on the device.
//
// What    Matrix (a weight as tiles, in slices that one binding can hold), vectors, rotation tables, and the lowered
//         operations. Weights are repacked by several threads into bounded staging memory, never held twice.
// Owns    the memory of the weights; byte counts are exact, and a cancelled or failed load frees everything.
// Thread  immutable once loaded: contexts of several threads share it.
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

/// A weight matrix as the kernels see it.
struct Matrix {
    Tiling tiling;
    struct Slice {
        Region region;
        uint32_t first = 0, n = 0;  ///< tile rows
    };
    std::vector<Slice> slices;  ///< one, unless the device sees less than the whole at a time
    bool empty() const { return slices.empty(); }
};

/// A rotation table: for each pair the turns per position, times 2^64, low word first.
struct Rope {
    uint32_t n_rot = 0;
    float base = 0;
    SlotId factors = kNoSlot;  ///< what each pair's angle is divided by
    Region table;
};

class VulkanModel : public LoadedModel, public std::enable_shared_from_this<VulkanModel> {
  public:
    const Plan* plan = nullptr;
    OpenDeviceRef device;
    std::vector<Pair> pairs;
    std::vector<Matrix> matrices;  ///< by SlotId; a pair has the id of its gate
    std::vector<Region> vectors;   ///< by SlotId: f32; a router's: its rows, then the shared expert's own gate
    std::vector<Rope> ropes;
    Region zeros;  ///< f32, as long as the widest row

    /// Uploads everything. errors: unsupported, out_of_memory, cancelled, device_lost.
    static Result<std::shared_ptr<LoadedModel>> load(OpenDeviceRef device, const Plan& plan, const Weights& weights,
                                                     const Progress& progress);
    /// A model without weights: enough to plan the memory of contexts.
    static Result<std::shared_ptr<VulkanModel>> bare(OpenDeviceRef device, const Plan& plan);
    /// What load() would take, by type.
    static Status plan_weights(OpenDeviceRef device, const Plan& plan, std::vector<MemoryItem>* items);

    /// The kernels of a tape of the plan, in order, or of its first n_fill ops.
    const std::vector<Node>& nodes(const Tape& tape, bool fill_only = false) const {
        return nodes_[fill_only][tape_index(tape)];
    }
    /// 0: the trunk; 1 + i: MTP block i.
    uint32_t tape_index(const Tape& tape) const;

    Result<std::unique_ptr<Context>> open(const ContextOptions& options) override;
    uint64_t weight_bytes() const override { return n_weight_bytes_; }
    /// Exactness before speed: see Context::small_bytes.
    bool small() const { return n_weight_bytes_ <= device->small_bytes; }
    const Region* rope(const Op& op) const;

    /// The head that all MTP blocks share, or kNoSlot.
    SlotId draft_table() const;
    /// Its rows in the file; null when the file may be gone.
    const std::byte* draft_rows = nullptr;

  private:
    struct Uploads;
    Status lay_out(Uploads* to);
    Memory memory_;
    std::vector<std::vector<Node>> nodes_[2];  ///< [fill_only]: of the trunk and each MTP block
    uint64_t n_weight_bytes_ = 0;
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
