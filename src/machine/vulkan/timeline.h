// machine/vulkan/timeline: submissions to a device's queue, and waiting for them.
//
// What    Timeline: a timeline semaphore and the last value submitted to it, one per context or per uploader.
// Owns    the semaphore.
// Thread  a Timeline belongs to one thread at a time; several may run on one Gpu.
// Tests   tests/test_vulkan_lost.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "device.h"

#include <new>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// Destroys `to` and moves `from` into its place. For objects held through a GpuRef: one that was moved from has
/// nothing left to destroy.
template <class T>
T& take_over(T& to, T& from) noexcept {
    if (&to == &from) return to;
    to.~T();
    return *new (&to) T(std::move(from));
}

class Timeline {
  public:
    Timeline() = default;
    ~Timeline();
    Timeline(Timeline&&) = default;
    Timeline& operator=(Timeline&& o) noexcept { return take_over(*this, o); }
    static Result<Timeline> create(GpuRef gpu);
    /// Submits and returns the value to wait for.
    Result<uint64_t> submit(Span<const VkCommandBuffer> buffers);
    Result<uint64_t> submit(VkCommandBuffer buffer) { return submit(Span<const VkCommandBuffer>(&buffer, 1)); }
    /// Sleeps until `value` is reached.
    /// errors    device_lost, also when no submission to the device finishes for timeout_ns (0: the device's): from
    ///           then on Gpu::stalled.
    Status wait(uint64_t value, uint64_t timeout_ns = 0);
    /// Waits for all that was submitted, as wait() does. What kernels use may be freed after it, unless Gpu::stalled.
    void finish();
    /// True once `value` is reached; does not sleep.
    Result<bool> done(uint64_t value);
    uint64_t last() const { return last_; }
    explicit operator bool() const { return semaphore_ != VK_NULL_HANDLE; }

  private:
    GpuRef gpu_;
    VkSemaphore semaphore_ = VK_NULL_HANDLE;
    uint64_t last_ = 0;
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
