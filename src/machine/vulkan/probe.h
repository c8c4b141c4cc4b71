// machine/vulkan/probe: what a device can do, and a VkDevice with exactly that enabled.
//
// What    The feature chain (queried, read from a borrowed device, or passed to vkCreateDevice), the choice of memory
//         types, the cooperative matrix shapes. Only what is used is enabled, and never robustBufferAccess.
// Thread  called while a Gpu is being opened.
// Tests   tests/test_vulkan_device.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "device.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// The two-call idiom; empty on failure.
template <class T, class F>
std::vector<T> enumerate(F call) {
    std::vector<T> all;
    uint32_t n = 0;
    for (int attempt = 0; attempt < 4; ++attempt) {  // the list may grow between the two calls
        if (call(&n, static_cast<T*>(nullptr)) < 0) return {};
        all.resize(n);
        if (n == 0) return all;
        const VkResult r = call(&n, all.data());
        if (r < 0) return {};
        all.resize(n);
        if (r != VK_INCOMPLETE) return all;
    }
    return all;
}

template <class F>
bool take_instance(const InstanceTable& t, VkInstance instance, const char* name, F* out) {
    *out = reinterpret_cast<F>(t.vkGetInstanceProcAddr(instance, name));
    return *out != nullptr;
}

bool has_extension(const std::vector<VkExtensionProperties>& all, const char* name);
std::string version_text(uint32_t version);

/// Fills gpu->traits from gpu->physical; `need` gets the device extensions that must be enabled.
void probe(Gpu* gpu, const VulkanHandles* borrow, std::vector<const char*>* need);
/// Creates the device with what the traits name. The caller looks at the result.
VkResult create_device(Gpu* gpu, std::vector<const char*> extensions);
/// Turns every optional feature off, for drivers that report what they then refuse.
void drop_optional(DeviceTraits* traits);
/// Chooses the memory types of the traits; needs the device table.
Status choose_memory(Gpu* gpu, int direct_upload);
/// Whether a borrowed device's VkPhysicalDeviceFeatures2 chain enables timeline semaphores.
bool chain_has_timeline(const void* chain);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
