// tests/driver_shapes: a driver that answers as another would: its limits, features, extensions, kind and version, and
// memory that it cuts into two heaps.
//
// open_shape() opens a device on it, which stays as it is until the next is opened.
#pragma once
#include "driver_shim.h"

#ifndef AUSPEX_NO_VULKAN
#include <algorithm>
#include <map>
#include <optional>

#include "../src/engine/model.h"
#include "session_rig.h"
#include "vulkan_model.h"

namespace test_driver_shapes {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

/// Features that a driver may lack, as bits.
enum Feature : uint32_t {
    kTimeline = 1,
    kStorage8 = 2,
    kStorage16 = 4,
    kAddresses = 8,
    kSmallTypes = 16,  ///< shaderFloat16, shaderInt8, shaderInt16 and shaderInt64
};

/// What a driver answers.
struct Shape {
    const char* name;
    const char* refused = nullptr;  ///< what the error says; null: it runs
    void (*properties)(VkPhysicalDeviceProperties&) = nullptr;
    uint32_t without = 0;  ///< bits of Feature
    void (*subgroups)(VkPhysicalDeviceSubgroupProperties&) = nullptr;
    uint32_t version = 0;              ///< of the instance and the device; 0: as it is
    const char* extensions = nullptr;  ///< the only ones there are; null: as it is
    uint64_t max_allocation = 0;       ///< bytes; 0: as it is
    bool in_deep_only = true;          ///< of those that run
};

using Properties = VkPhysicalDeviceProperties;
using Subgroups = VkPhysicalDeviceSubgroupProperties;

inline const Shape kAsItIs{"as it is"};
inline const Shape* shape = nullptr;  ///< of the device that is opened next
inline PFN_vkGetPhysicalDeviceProperties2 real_properties = nullptr;
inline PFN_vkGetPhysicalDeviceFeatures2 real_features = nullptr;
inline PFN_vkEnumerateDeviceExtensionProperties real_extensions = nullptr;

inline PFN_vkCreateInstance real_create_instance = nullptr;

/// A memory that the driver cuts into two heaps: type and heap 0 are local to the device, 1 is the host's. Both are of
/// one real type, which the host sees.
struct TwoHeaps {
    uint64_t size[2] = {};         ///< bytes; of no use where [0] is 0
    bool visible = false;          ///< the host sees heap 0 too
    bool budget = false;           ///< there is VK_EXT_memory_budget
    std::optional<uint64_t> told;  ///< the budget that it tells of each heap; not set: its size
    bool coherent = true;   ///< false: host and device see what the other wrote to heap 1 when it is flushed alone
    bool combined = false;  ///< heap 1 has a type that is not cached before the cached one, as with RADV
    uint32_t real_type = 0;
    uint64_t used[2] = {}, peak[2] = {};
    std::map<VkDeviceMemory, std::pair<uint32_t, uint64_t>> placed;  ///< heap and bytes
    /// What the host sees of a memory that is not coherent, and the memory.
    struct View {
        std::vector<std::byte> host;
        std::byte* device = nullptr;
    };
    std::map<VkDeviceMemory, View> views;
    std::function<void()> during_allocation;  ///< of the next memory
};
inline TwoHeaps heaps;

/// The struct in a chain.
template <class T>
T& as(VkBaseOutStructure* s) {
    return *reinterpret_cast<T*>(s);
}
/// What a driver of Vulkan 1.1 knows nothing of is not asked.
inline void check_chain(const VkBaseOutStructure* s) {
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES);
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES);
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
}
inline void VKAPI_PTR shaped_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2* p) {
    real_properties(device, p);
    if (shape->version) p->properties.apiVersion = shape->version;
    if (shape->properties) shape->properties(p->properties);
    for (auto* s = static_cast<VkBaseOutStructure*>(p->pNext); s; s = s->pNext) {
        check_chain(s);
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES && shape->subgroups)
            shape->subgroups(as<Subgroups>(s));
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES && shape->max_allocation)
            as<VkPhysicalDeviceMaintenance3Properties>(s).maxMemoryAllocationSize = shape->max_allocation;
    }
}
inline void VKAPI_PTR shaped_features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* f) {
    real_features(device, f);
    const auto drop = [](uint32_t which, VkBool32& feature) {
        if (shape->without & which) feature = VK_FALSE;
    };
    drop(kSmallTypes, f->features.shaderInt16);
    drop(kSmallTypes, f->features.shaderInt64);
    for (auto* s = static_cast<VkBaseOutStructure*>(f->pNext); s; s = s->pNext) {
        check_chain(s);
        switch (static_cast<int>(s->sType)) {
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES:
                drop(kTimeline, as<VkPhysicalDeviceTimelineSemaphoreFeatures>(s).timelineSemaphore);
                break;
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES:
                drop(kStorage8, as<VkPhysicalDevice8BitStorageFeatures>(s).storageBuffer8BitAccess);
                break;
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES:
                drop(kStorage16, as<VkPhysicalDevice16BitStorageFeatures>(s).storageBuffer16BitAccess);
                break;
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES:
                drop(kAddresses, as<VkPhysicalDeviceBufferDeviceAddressFeatures>(s).bufferDeviceAddress);
                break;
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES:
                drop(kSmallTypes, as<VkPhysicalDeviceShaderFloat16Int8Features>(s).shaderFloat16);
                drop(kSmallTypes, as<VkPhysicalDeviceShaderFloat16Int8Features>(s).shaderInt8);
                break;
            default: break;
        }
    }
}
inline VkResult VKAPI_PTR shaped_extensions(VkPhysicalDevice device, const char* layer, uint32_t* n,
                                            VkExtensionProperties* p) {
    uint32_t n_all = 0;
    real_extensions(device, layer, &n_all, nullptr);
    std::vector<VkExtensionProperties> all(n_all);
    real_extensions(device, layer, &n_all, all.data());
    const auto listed = [](const VkExtensionProperties& e) {
        return !shape->extensions || std::string(shape->extensions).find(e.extensionName) != std::string::npos;
    };
    all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& e) { return !listed(e); }), all.end());
    if (heaps.size[0] != 0)
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [](const auto& e) {
                                     return std::string(e.extensionName) == VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
                                 }),
                  all.end());
    if (heaps.budget) all.push_back({VK_EXT_MEMORY_BUDGET_EXTENSION_NAME, 1});
    *n = uint32_t(all.size());
    if (p) std::copy(all.begin(), all.end(), p);
    return VK_SUCCESS;
}
/// The driver and the layers hold the library to the version that they are told.
inline VkResult VKAPI_PTR shaped_instance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks* a,
                                          VkInstance* out) {
    VkApplicationInfo app = *info->pApplicationInfo;
    VkInstanceCreateInfo with = *info;
    if (shape->version) app.apiVersion = shape->version;
    with.pApplicationInfo = &app;
    return real_create_instance(&with, a, out);
}

inline PFN_vkGetPhysicalDeviceMemoryProperties2 real_memory = nullptr;
inline PFN_vkGetBufferMemoryRequirements real_requirements = nullptr;
inline PFN_vkAllocateMemory real_allocate = nullptr;
inline PFN_vkFreeMemory real_free = nullptr;

inline void VKAPI_PTR cut_memory(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2* m) {
    real_memory(device, m);
    VkPhysicalDeviceMemoryProperties& p = m->memoryProperties;
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (heaps.real_type = 0; (p.memoryTypes[heaps.real_type].propertyFlags & host) != host;) ++heaps.real_type;
    p.memoryTypeCount = p.memoryHeapCount = 2;
    p.memoryTypes[0] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | (heaps.visible ? host : 0), 0};
    p.memoryTypes[1] = {host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1};
    if (!heaps.coherent) p.memoryTypes[1].propertyFlags &= ~VkMemoryPropertyFlags(VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    if (heaps.combined) p.memoryTypes[p.memoryTypeCount++] = std::exchange(p.memoryTypes[1], {host, 1});
    p.memoryHeaps[0] = {heaps.size[0], VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    p.memoryHeaps[1] = {heaps.size[1], 0};
    for (auto* s = static_cast<VkBaseOutStructure*>(m->pNext); s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
            for (int h = 0; h < 2; ++h) {
                as<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(s).heapBudget[h] = heaps.told.value_or(heaps.size[h]);
                as<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(s).heapUsage[h] = heaps.used[h];
            }
}
inline void VKAPI_PTR cut_requirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements* need) {
    real_requirements(device, buffer, need);
    need->memoryTypeBits = heaps.combined ? 7 : 3;
}
inline VkResult VKAPI_PTR cut_allocate(VkDevice device, const VkMemoryAllocateInfo* info,
                                       const VkAllocationCallbacks* a, VkDeviceMemory* out) {
    const uint32_t heap = std::min(info->memoryTypeIndex, 1u);
    if (const auto call = std::exchange(heaps.during_allocation, nullptr)) call();
    if (heaps.used[heap] + info->allocationSize > heaps.size[heap]) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkMemoryAllocateInfo real = *info;
    real.memoryTypeIndex = heaps.real_type;
    const VkResult r = real_allocate(device, &real, a, out);
    if (r != VK_SUCCESS) return r;
    heaps.placed[*out] = {heap, info->allocationSize};
    heaps.used[heap] += info->allocationSize;
    heaps.peak[heap] = std::max(heaps.peak[heap], heaps.used[heap]);
    return r;
}
inline void VKAPI_PTR cut_free(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks* a) {
    const auto at = heaps.placed.find(memory);
    if (at != heaps.placed.end()) {
        heaps.used[at->second.first] -= at->second.second;
        heaps.placed.erase(at);
    }
    heaps.views.erase(memory);
    real_free(device, memory, a);
}
inline PFN_vkMapMemory real_map = nullptr;
inline VkResult VKAPI_PTR cut_map(VkDevice device, VkDeviceMemory memory, VkDeviceSize at, VkDeviceSize n,
                                  VkMemoryMapFlags f, void** out) {
    const VkResult r = real_map(device, memory, at, n, f, out);
    const auto [heap, bytes] = heaps.placed[memory];
    if (r != VK_SUCCESS || heaps.coherent || heap == 0) return r;
    TwoHeaps::View& view = heaps.views[memory];
    view.device = static_cast<std::byte*>(*out);
    view.host.assign(view.device, view.device + bytes);
    *out = view.host.data();
    return r;
}
/// Carries ranges over, from the host to the device or back.
inline VkResult carry(uint32_t n, const VkMappedMemoryRange* ranges, bool to_device) {
    for (uint32_t i = 0; i < n; ++i) {
        TwoHeaps::View& view = heaps.views.at(ranges[i].memory);
        std::byte *host = view.host.data() + ranges[i].offset, *device = view.device + ranges[i].offset;
        REQUIRE(ranges[i].offset + ranges[i].size <= view.host.size());
        std::copy_n(to_device ? host : device, ranges[i].size, to_device ? device : host);
    }
    return VK_SUCCESS;
}
inline VkResult VKAPI_PTR cut_flush(VkDevice, uint32_t n, const VkMappedMemoryRange* ranges) {
    return carry(n, ranges, true);
}
inline VkResult VKAPI_PTR cut_invalidate(VkDevice, uint32_t n, const VkMappedMemoryRange* ranges) {
    return carry(n, ranges, false);
}
inline void edit_memory(VolkDeviceTable* t) {
    driver_shim::edit_device(t);
    if (heaps.size[0] == 0) return;
    real_map = std::exchange(t->vkMapMemory, cut_map);
    if (!heaps.coherent) {
        t->vkFlushMappedMemoryRanges = cut_flush;
        t->vkInvalidateMappedMemoryRanges = cut_invalidate;
    }
    real_requirements = std::exchange(t->vkGetBufferMemoryRequirements, cut_requirements);
    real_allocate = std::exchange(t->vkAllocateMemory, cut_allocate);
    real_free = std::exchange(t->vkFreeMemory, cut_free);
}

inline const Shape kDiscrete{"discrete", nullptr,
                             [](Properties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU; }};
inline const Shape kIntegrated{"integrated", nullptr,
                               [](Properties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU; }};

inline Result<vk::OpenDeviceRef> open_shape(const Shape& with, uint32_t max_submit_ms = 0,
                                            Span<const vk::Quirk> quirks = vk::known_quirks()) {
    shape = &with;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    options.max_submit_ms = max_submit_ms;
    vk::OpenDetail detail;
    detail.quirks = quirks;
    detail.edit_device = edit_memory;
    detail.edit_instance = [](vk::InstanceTable* t) {
        driver_shim::edit_instance(t);
        if (!t->vkGetPhysicalDeviceProperties2) {  // before there is an instance
            real_create_instance = std::exchange(t->vkCreateInstance, shaped_instance);
            return;
        }
        if (t->vkGetPhysicalDeviceProperties2 == shaped_properties) return;
        real_properties = std::exchange(t->vkGetPhysicalDeviceProperties2, shaped_properties);
        real_features = std::exchange(t->vkGetPhysicalDeviceFeatures2, shaped_features);
        real_extensions = std::exchange(t->vkEnumerateDeviceExtensionProperties, shaped_extensions);
        if (heaps.size[0] != 0) real_memory = std::exchange(t->vkGetPhysicalDeviceMemoryProperties2, cut_memory);
    };
    return vk::open_device(options, detail);
}

inline Device device_on(const vk::OpenDeviceRef& opened) {
    Device device = cpu_device();
    device.impl()->machine = vk::make_backend(opened);
    return device;
}

inline void limit_memory(const Device& device, const vk::OpenDeviceRef& opened, uint64_t bytes) {
    opened->gpu->memory_limit_bytes = device.impl()->options.memory_limit_bytes = bytes;
}

/// The text of a prompt that takes wide and narrow steps.
inline Status text_on(const vk::OpenDeviceRef& opened, const std::vector<std::byte>& bytes, std::vector<Token>* text,
                      size_t n_prompt = 40, uint32_t n_ubatch = 32) {
    Device device = device_on(opened);
    Model model;
    if (Status s = Model::load(device, bytes).get(model); !s.ok()) return s;
    SessionOptions options;
    options.n_context = 256;
    options.n_ubatch = n_ubatch;
    Session session;
    if (Status s = Session::create(model, options).get(session); !s.ok()) return s;
    if (Status s = session.sync(tiny_ids(n_prompt, 4)).status(); !s.ok()) return s;
    while (session.history().size() < n_prompt + 8)
        if (Status s = session.next().status(); !s.ok()) return s;
    text->assign(session.history().begin(), session.history().end());
    return {};
}

}  // namespace test_driver_shapes
#endif  // AUSPEX_NO_VULKAN
