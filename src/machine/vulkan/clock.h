// machine/vulkan/clock: how long the device works on each queued cycle.
//
// What    Timestamps before, in and after a cycle. The time counts device work only: neither what the host did
//         meanwhile nor the wait for a late caller.
// Owns    the queries, and a recording for each mark. A mark has no barrier, and a query is cleared once in
//         n_queued cycles: with a barrier and a clear each, marks took 1.5 % of a small model's step on an H100.
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
    using List = std::vector<VkCommandBuffer>;

    CycleClock() = default;
    ~CycleClock();
    CycleClock(CycleClock&&) = default;
    CycleClock& operator=(CycleClock&& o) noexcept { return take_over(*this, o); }
    /// n_queued: cycles that may be in flight. Without timestamps on the queue it is made all the same, and tells
    /// nothing.
    static Result<CycleClock> create(GpuRef gpu, std::shared_ptr<CommandPool> pool, uint32_t n_queued);

    /// The marks of one cycle, added to the list of its submission in this order. had_begin: something other than a
    /// cycle ran before it, or nothing did; any other cycle begins where the one before it ends.
    void begin(bool had_begin, List* list) const;
    /// Between the draft block's part of a cycle and the trunk's.
    void middle(List* list) const { add(1, list); }
    void end(List* list) const { add(2, list); }
    /// The list was submitted. Returns what read() wants; without it the next cycle takes the same marks.
    uint32_t submitted();

    struct Times {
        double us = 0;        ///< the whole cycle; 0: not known
        double block_us = 0;  ///< of it, what came before its middle, if that was marked
    };
    /// Of the cycle with these marks, which is over; cycles are read in the order they ran.
    Result<Times> read(uint32_t slot, bool had_begin, bool had_middle);

  private:
    static constexpr uint32_t kMarks = 3;  ///< begin, middle, end
    bool on() const { return !marks_.empty(); }
    uint32_t n_slot() const { return 2 * n_queued_; }
    void add(uint32_t mark, List* list) const;
    Status record();
    Result<uint64_t> tick(uint32_t slot, uint32_t mark) const;  ///< 0: not known yet
    GpuRef gpu_;
    std::shared_ptr<CommandPool> pool_;
    VkQueryPool queries_ = VK_NULL_HANDLE;
    /// [kMarks * slot + mark], then one for each half of the slots that clears its queries: while one half is in use,
    /// every cycle of the other has been read.
    std::vector<VkCommandBuffer> marks_;
    uint32_t n_queued_ = 0, slot_ = 0;  ///< of the next cycle
    uint64_t last_ = 0;                 ///< end of the cycle that was read last; 0: not known
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
