// machine/vulkan/timeline: submissions to a device's queue, and waiting for them.
//
// What    Timeline: numbers its submissions and waits for a number, one per context or per uploader. Over a timeline
//         semaphore, or over a ring of fences on devices without (DeviceTraits::timeline).
// Owns    the semaphore or the fences.
// Thread  a Timeline belongs to one thread at a time; over a semaphore another may wait() meanwhile. Several may run on
//         one Gpu.
// Tests   tests/test_vulkan_lost.cpp, tests/test_vulkan_calls.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "device.h"

#include <array>
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
    /// Submissions that run at once where fences stand in for the semaphore: more than a context queues.
    static constexpr uint32_t kFences = 32;

    Timeline() = default;
    ~Timeline();
    Timeline(Timeline&&) = default;
    Timeline& operator=(Timeline&& o) noexcept { return take_over(*this, o); }
    static Result<Timeline> create(GpuRef gpu);
    /// Submits and returns the value to wait for. With kFences submissions running, it waits for the oldest.
    Result<uint64_t> submit(Span<const VkCommandBuffer> buffers);
    Result<uint64_t> submit(VkCommandBuffer buffer) { return submit(Span<const VkCommandBuffer>(&buffer, 1)); }
    /// Sleeps until `value` is reached.
    /// errors    device_lost, also when no submission to the device finishes for timeout_ns (0: the device's): from
    ///           then on Gpu::stalled. Over fences, a loss that the driver answers with VK_SUCCESS goes unnoticed.
    Status wait(uint64_t value, uint64_t timeout_ns = 0);
    /// Waits for all that was submitted, as wait() does. What kernels use may be freed after it, unless Gpu::stalled.
    void finish();
    /// True once `value` is reached; does not sleep.
    Result<bool> done(uint64_t value);
    uint64_t last() const { return last_; }
    explicit operator bool() const { return gpu_ != nullptr; }

  private:
    VkFence fence_of(uint64_t value) const { return fences_[value % kFences]; }
    void destroy();
    /// Sleeps until `value` is reached or `ns` have passed: VK_TIMEOUT.
    Status wait_slice(uint64_t value, uint64_t ns, bool* reached);
    /// The value that was reached. The fence of a submission says that those before it are done, too.
    Status read_counter(uint64_t* value);
    GpuRef gpu_;
    VkSemaphore semaphore_ = VK_NULL_HANDLE;  ///< null: fences
    std::array<VkFence, kFences> fences_{};   ///< submission v signals fence v % kFences
    uint64_t last_ = 0;
    uint64_t reached_ = 0;  ///< with fences: no fence up to this value is asked again
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
