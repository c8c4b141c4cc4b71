// machine/vulkan/clock: how long the device works on each queued cycle.
//
// What    Timestamps before, in and after a cycle. The time counts device work only: neither what the host did
//         meanwhile nor the wait for a late caller.
// Owns    three timestamp recordings for each cycle that may be queued.
// Thread  the context's.
// Tests   tests/test_device_loop.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "commands.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

class CycleClock {
  public:
    /// Without timestamps on the queue it is made all the same, and tells nothing.
    static Result<CycleClock> create(GpuRef gpu, const std::shared_ptr<CommandPool>& pool, uint32_t n_slot);
    /// Around the cycle in `slot`, in one submission; null without timestamps. `begin` is for a cycle before which
    /// something else ran, or nothing: any other begins where the one before it ends.
    VkCommandBuffer begin(uint32_t slot) const { return on() ? begin_[slot].handle() : VK_NULL_HANDLE; }
    VkCommandBuffer end(uint32_t slot) const { return on() ? end_[slot].handle() : VK_NULL_HANDLE; }
    /// Between the draft block's part of a cycle and the trunk's.
    VkCommandBuffer middle(uint32_t slot) const { return on() ? middle_[slot].handle() : VK_NULL_HANDLE; }
    struct Times {
        double us = 0;        ///< the whole cycle; 0: not known
        double block_us = 0;  ///< of it, what came before its middle, if that was marked
    };
    /// Of the cycle in `slot`, which is over; cycles are read in the order they ran.
    Result<Times> read(uint32_t slot, bool had_begin, bool had_middle);

  private:
    bool on() const { return !end_.empty(); }
    GpuRef gpu_;
    std::vector<Commands> begin_, middle_, end_;
    uint64_t last_ = 0;  ///< end of the cycle that was read last
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
