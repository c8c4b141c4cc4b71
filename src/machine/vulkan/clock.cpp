#include "clock.h"
#ifndef AUSPEX_NO_VULKAN

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

Result<CycleClock> CycleClock::create(GpuRef gpu, const std::shared_ptr<CommandPool>& pool, uint32_t n_slot) {
    CycleClock c;
    c.gpu_ = gpu;
    if (gpu->traits.timestamp_bits == 0) return c;
    for (std::vector<Commands>* marks : {&c.begin_, &c.middle_, &c.end_})
        for (uint32_t i = 0; i < n_slot; ++i) {
            Commands mark;
            AUSPEX_TRY(Commands::create(gpu, 1, pool).get(mark));
            AUSPEX_TRY(mark.begin());
            mark.timestamp("mark");
            AUSPEX_TRY(mark.end());
            marks->push_back(std::move(mark));
        }
    return c;
}

Result<CycleClock::Times> CycleClock::read(uint32_t slot, bool had_begin, bool had_middle) {
    Times t;
    if (!on()) return t;
    uint64_t from = last_, middle = 0;
    if (had_begin) AUSPEX_TRY(begin_[slot].tick(0).get(from));
    AUSPEX_TRY(end_[slot].tick(0).get(last_));
    t.us = gpu_->traits.us_between(from, last_);
    if (!had_middle) return t;
    AUSPEX_TRY(middle_[slot].tick(0).get(middle));
    t.block_us = gpu_->traits.us_between(from, middle);
    return t;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
