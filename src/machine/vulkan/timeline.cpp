#include "timeline.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace timeline_impl {

constexpr uint32_t kWaitSlices = 8;    ///< of a wait's time-out, between looks at the progress of other threads
constexpr uint32_t kWaitAttempts = 3;  ///< of the last wait, where the driver has no memory for one

}  // namespace timeline_impl

void Timeline::finish() {
    if (!gpu_ || !semaphore_) return;
    for (uint32_t i = 0; i < timeline_impl::kWaitAttempts; ++i)
        if (wait(last_).ok() || gpu_->lost) return;
    // The caller is about to free what may still be in use: without an answer nothing is freed any more.
    gpu_->lost = true;
    gpu_->stalled = true;
}

Timeline::~Timeline() {
    finish();
    if (gpu_ && semaphore_ && !gpu_->stalled) gpu_->vk.vkDestroySemaphore(gpu_->device, semaphore_, nullptr);
}

Result<Timeline> Timeline::create(GpuRef gpu) {
    Timeline t;
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    if (VkResult r = gpu->vk.vkCreateSemaphore(gpu->device, &info, nullptr, &t.semaphore_); r != VK_SUCCESS)
        return gpu->check(r, "vkCreateSemaphore");
    t.gpu_ = std::move(gpu);
    return t;
}

Result<uint64_t> Timeline::submit(Span<const VkCommandBuffer> buffers) {
    if (Status s = gpu_->submit(buffers, semaphore_, last_ + 1); !s.ok()) return s;
    return ++last_;
}

Status Timeline::wait(uint64_t value, uint64_t timeout_ns) {
    if (value == 0) return {};
    if (timeout_ns == 0) timeout_ns = gpu_->timeout_ns;
    VkSemaphoreWaitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
    info.semaphoreCount = 1;
    info.pSemaphores = &semaphore_;
    info.pValues = &value;
    // In slices, so that every waiting thread sees the progress of the others: they share the queue.
    const uint64_t slice_ns = std::max<uint64_t>(timeout_ns / timeline_impl::kWaitSlices, 1);
    uint64_t reached = 0, n_progress = gpu_->n_progress;
    for (uint32_t n_idle = 0; n_idle < timeline_impl::kWaitSlices;) {
        const VkResult r = gpu_->vk.vkWaitSemaphores(gpu_->device, &info, gpu_->stalled ? 0 : slice_ns);
        if (r != VK_TIMEOUT) return gpu_->check(r, "vkWaitSemaphores");
        uint64_t now = 0;
        if (VkResult c = gpu_->vk.vkGetSemaphoreCounterValue(gpu_->device, semaphore_, &now); c != VK_SUCCESS)
            return gpu_->check(c, "vkGetSemaphoreCounterValue");
        if (now >= value) return {};
        if (gpu_->stalled) break;
        if (now > reached) ++gpu_->n_progress;
        reached = now;
        n_idle = gpu_->n_progress == n_progress ? n_idle + 1 : 0;
        n_progress = gpu_->n_progress;
    }
    gpu_->lost = true;
    gpu_->stalled = true;
    return fail(Code::device_lost, "the Vulkan device finished nothing for ", timeout_ns / 1000000,
                " ms and is taken for lost; its memory is not freed, because kernels may still run. Open the device "
                "again.");
}

Result<bool> Timeline::done(uint64_t value) {
    uint64_t now = 0;
    if (VkResult r = gpu_->vk.vkGetSemaphoreCounterValue(gpu_->device, semaphore_, &now); r != VK_SUCCESS)
        return gpu_->check(r, "vkGetSemaphoreCounterValue");
    return now >= value;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
