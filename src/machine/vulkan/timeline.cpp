#include "timeline.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>
#include <chrono>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace timeline_impl {

constexpr uint32_t kWaitSlices = 8;    ///< of a wait's time-out, between looks at the progress of other threads
constexpr uint32_t kWaitAttempts = 3;  ///< of the last wait, where the driver has no memory for one
constexpr uint64_t kMaxValue = UINT64_MAX / 2;  ///< no timeline gets so far

}  // namespace timeline_impl

void Timeline::finish() {
    if (!gpu_) return;
    for (uint32_t i = 0; i < timeline_impl::kWaitAttempts; ++i)
        if (wait(last_).ok() || gpu_->lost) return;
    // The caller is about to free what may still be in use: without an answer nothing is freed any more.
    gpu_->stalled = true;
    gpu_->lost = true;
}

void Timeline::destroy() {
    if (semaphore_) gpu_->vk.vkDestroySemaphore(gpu_->device, semaphore_, nullptr);
    for (const VkFence f : fences_)
        if (f) gpu_->vk.vkDestroyFence(gpu_->device, f, nullptr);
}

Timeline::~Timeline() {
    finish();
    if (gpu_ && !gpu_->stalled) destroy();
}

Result<Timeline> Timeline::create(GpuRef gpu) {
    Timeline t;
    t.gpu_ = std::move(gpu);
    const Gpu& g = *t.gpu_;
    if (!g.traits.timeline) {
        VkFenceCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
        for (VkFence& f : t.fences_)
            AUSPEX_TRY(t.gpu_->made(g.vk.vkCreateFence(g.device, &info, nullptr, &f), &f, "vkCreateFence"));
        return t;
    }
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    AUSPEX_TRY(t.gpu_->made(g.vk.vkCreateSemaphore(g.device, &info, nullptr, &t.semaphore_), &t.semaphore_,
                            "vkCreateSemaphore"));
    return t;
}

Result<uint64_t> Timeline::submit(Span<const VkCommandBuffer> buffers) {
    const uint64_t value = last_ + 1;
    VkFence fence = VK_NULL_HANDLE;
    if (!semaphore_) {
        if (value > kFences) AUSPEX_TRY(wait(value - kFences));
        fence = fence_of(value);
        AUSPEX_TRY(gpu_->check(gpu_->vk.vkResetFences(gpu_->device, 1, &fence), "vkResetFences"));
    }
    AUSPEX_TRY(gpu_->submit(buffers, semaphore_, value, fence));
    last_ = value;
    return value;
}

Status Timeline::wait_slice(uint64_t value, uint64_t ns, bool* reached) {
    VkResult r = VK_SUCCESS;
    const char* function = "vkWaitSemaphores";
    if (semaphore_) {
        VkSemaphoreWaitInfo info{};
        info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
        info.semaphoreCount = 1;
        info.pSemaphores = &semaphore_;
        info.pValues = &value;
        r = gpu_->vk.vkWaitSemaphores(gpu_->device, &info, ns);
    } else if (value > reached_) {
        const VkFence fence = fence_of(value);
        function = "vkWaitForFences";
        r = gpu_->vk.vkWaitForFences(gpu_->device, 1, &fence, VK_TRUE, ns);
        if (r == VK_SUCCESS) reached_ = value;
    }
    *reached = r == VK_SUCCESS;
    return r == VK_TIMEOUT ? Status() : gpu_->check(r, function);
}

Status Timeline::read_counter(uint64_t* value) {
    if (semaphore_) {
        AUSPEX_TRY(gpu_->check(gpu_->vk.vkGetSemaphoreCounterValue(gpu_->device, semaphore_, value),
                               "vkGetSemaphoreCounterValue"));
        // On a lost device calls may return VK_SUCCESS. NVIDIA's counter then is UINT64_MAX, like that of Direct3D.
        // Not compared with last_: the owner may submit while another thread waits.
        if (*value <= timeline_impl::kMaxValue) return {};
        gpu_->lost = true;
        return Status(
            Code::device_lost,
            "a semaphore of the Vulkan device has a value that nothing signals: the device was lost. Open the "
            "device again.");
    }
    VkResult r = VK_SUCCESS;
    while (reached_ < last_ && r == VK_SUCCESS) {
        r = gpu_->vk.vkGetFenceStatus(gpu_->device, fence_of(reached_ + 1));
        if (r == VK_SUCCESS) ++reached_;
    }
    *value = reached_;
    return r == VK_NOT_READY ? Status() : gpu_->check(r, "vkGetFenceStatus");
}

Status Timeline::wait(uint64_t value, uint64_t timeout_ns) {
    if (!semaphore_) value = std::min(value, last_);  // a fence that is not submitted is never signalled
    if (value == 0) return {};
    if (timeout_ns == 0) timeout_ns = gpu_->timeout_ns;
    // In slices, so that every waiting thread sees the progress of the others: they share the queue.
    const uint64_t slice_ns = std::max<uint64_t>(timeout_ns / timeline_impl::kWaitSlices, 1);
    uint64_t reached = 0, n_progress = gpu_->n_progress;
    auto begin = std::chrono::steady_clock::now();  // of the slice
    uint64_t rest_ns = slice_ns;
    for (uint32_t n_idle = 0; n_idle < timeline_impl::kWaitSlices;) {
        bool there = false;
        AUSPEX_TRY(wait_slice(value, gpu_->stalled ? 0 : rest_ns, &there));
        if (there && !semaphore_) return {};
        uint64_t now = 0;
        AUSPEX_TRY(read_counter(&now));  // after a wait that succeeded, too: the device may be lost
        if (there || now >= value) return {};
        if (gpu_->stalled) break;
        if (now > reached) ++gpu_->n_progress;
        reached = now;
        const bool idle = gpu_->n_progress == n_progress;
        if (idle && gpu_->lost) return lost_before();  // another thread was told so
        n_progress = gpu_->n_progress;
        // Some drivers report a time-out where a signal interrupts the wait: then the rest of the slice is waited for.
        // Slices are counted instead of one long time, which may pass while the whole machine sleeps.
        const auto time = std::chrono::steady_clock::now();
        const auto waited_ns = static_cast<uint64_t>(std::chrono::nanoseconds(time - begin).count());
        const bool over = !idle || waited_ns >= slice_ns;
        rest_ns = over ? slice_ns : slice_ns - waited_ns;
        if (!over) continue;
        begin = time;
        n_idle = idle ? n_idle + 1 : 0;
    }
    gpu_->stalled = true;  // before lost: whoever sees a lost device that is not stalled frees its memory
    gpu_->lost = true;
    return fail(Code::device_lost, "the Vulkan device finished nothing for ", timeout_ns / 1000000,
                " ms and is taken for lost; its memory is not freed, because kernels may still run. Open the device "
                "again.");
}

Result<bool> Timeline::done(uint64_t value) {
    uint64_t now = 0;
    AUSPEX_TRY(read_counter(&now));
    return now >= value;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
