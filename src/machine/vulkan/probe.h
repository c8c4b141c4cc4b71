// machine/vulkan/probe: queries a physical device and creates the VkDevice.
//
// What    Fills DeviceTraits (limits, features, cooperative matrix shapes), chooses memory types, and creates the
//         device with the features that auspex uses and no others, in particular without robustBufferAccess. For a
//         borrowed device, reads the features from its owner's VkPhysicalDeviceFeatures2 chain.
// Thread  called while a Gpu is being opened.
// Tests   tests/test_vulkan_device.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "device.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// Calls a Vulkan enumeration twice, for the count and for the elements; empty on failure.
template <class T, class F>
std::vector<T> enumerate(F call) {
    std::vector<T> all;
    uint32_t n = 0;
    for (int attempt = 0; attempt < 4; ++attempt) {  // again if the list grew between the calls
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
/// Creates the device with the extensions given and the features in the traits. The caller checks the result.
VkResult create_device(Gpu* gpu, std::vector<const char*> extensions);
/// Turns off every optional feature, to retry where the driver reports features that vkCreateDevice then refuses.
void drop_optional(DeviceTraits* traits);
/// Chooses the memory types of gpu->traits. Needs the device's function table.
Status choose_memory(Gpu* gpu, int direct_upload);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
