#include "clock.h"
#ifndef AUSPEX_NO_VULKAN

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

CycleClock::~CycleClock() {
    if (!gpu_ || gpu_->stalled) return;
    if (on())
        gpu_->vk.vkFreeCommandBuffers(gpu_->device, pool_->handle(), static_cast<uint32_t>(marks_.size()),
                                      marks_.data());
    if (queries_) gpu_->vk.vkDestroyQueryPool(gpu_->device, queries_, nullptr);
}

Result<CycleClock> CycleClock::create(GpuRef gpu, std::shared_ptr<CommandPool> pool, uint32_t n_queued) {
    CycleClock c;
    if (gpu->traits.timestamp_bits == 0) return c;
    c.gpu_ = gpu;
    c.pool_ = std::move(pool);
    c.n_queued_ = n_queued;
    VkQueryPoolCreateInfo queries{};
    queries.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    queries.queryType = VK_QUERY_TYPE_TIMESTAMP;
    queries.queryCount = kMarks * c.n_slot();
    AUSPEX_TRY(gpu->made(gpu->vk.vkCreateQueryPool(gpu->device, &queries, nullptr, &c.queries_), &c.queries_,
                         "vkCreateQueryPool"));
    c.marks_.resize(queries.queryCount + 2);
    VkCommandBufferAllocateInfo marks{};
    marks.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    marks.commandPool = c.pool_->handle();
    marks.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    marks.commandBufferCount = static_cast<uint32_t>(c.marks_.size());
    if (VkResult r = gpu->vk.vkAllocateCommandBuffers(gpu->device, &marks, c.marks_.data()); r != VK_SUCCESS) {
        c.marks_.clear();
        return gpu->check(r, "vkAllocateCommandBuffers");
    }
    AUSPEX_TRY(c.record());
    return c;
}

Status CycleClock::record() {
    const auto& table = gpu_->vk;
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    const uint32_t n_mark = kMarks * n_slot();
    for (uint32_t i = 0; i < marks_.size(); ++i) {
        AUSPEX_TRY(gpu_->check(table.vkBeginCommandBuffer(marks_[i], &info), "vkBeginCommandBuffer"));
        if (i < n_mark)
            table.vkCmdWriteTimestamp(marks_[i], VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, i);
        else
            table.vkCmdResetQueryPool(marks_[i], queries_, (i - n_mark) * n_mark / 2, n_mark / 2);
        AUSPEX_TRY(gpu_->check(table.vkEndCommandBuffer(marks_[i]), "vkEndCommandBuffer"));
    }
    return {};
}

void CycleClock::add(uint32_t mark, List* list) const {
    if (on()) list->push_back(marks_[kMarks * slot_ + mark]);
}

void CycleClock::begin(bool had_begin, List* list) const {
    if (!on()) return;
    if (slot_ % n_queued_ == 0) list->push_back(marks_[kMarks * n_slot() + slot_ / n_queued_]);
    if (had_begin) add(0, list);
}

uint32_t CycleClock::submitted() {
    const uint32_t slot = slot_;
    if (on()) slot_ = (slot_ + 1) % n_slot();
    return slot;
}

Result<uint64_t> CycleClock::tick(uint32_t slot, uint32_t mark) const {
    uint64_t ticks = 0;
    const VkResult r = gpu_->vk.vkGetQueryPoolResults(gpu_->device, queries_, kMarks * slot + mark, 1, sizeof ticks,
                                                      &ticks, sizeof ticks, VK_QUERY_RESULT_64_BIT);
    if (r == VK_NOT_READY) return uint64_t{0};  // some drivers write it after they signal the semaphore
    AUSPEX_TRY(gpu_->check(r, "vkGetQueryPoolResults"));
    return ticks;
}

Result<CycleClock::Times> CycleClock::read(uint32_t slot, bool had_begin, bool had_middle) {
    Times t;
    if (!on()) return t;
    uint64_t from = last_, middle = 0;
    if (had_begin) AUSPEX_TRY(tick(slot, 0).get(from));
    AUSPEX_TRY(tick(slot, 2).get(last_));
    if (had_middle) AUSPEX_TRY(tick(slot, 1).get(middle));
    if (from == 0 || last_ == 0 || (had_middle && middle == 0)) return t;
    const double us = gpu_->traits.us_between(from, last_);
    // Intel's counters restart every few hours. Where that looks like a wrap-around, the difference is usually longer
    // than a wait may take.
    if (us == 0 || us * 1000 > static_cast<double>(gpu_->timeout_ns)) return t;
    t.us = us;
    if (had_middle) t.block_us = gpu_->traits.us_between(from, middle);
    return t;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
