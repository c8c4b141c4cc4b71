// tests/driver_shim: functions of the Vulkan driver that the test replaces: each can be made to fail, and what the
// driver hands out is counted until it is given back.
//
// Put one on a device with shim_driver(&detail). Only one device at a time counts.
#pragma once
#include "vulkan_support.h"

#ifndef AUSPEX_NO_VULKAN
#include <cstring>
#include <tuple>

namespace test {

/// A function of the driver that returns a VkResult.
struct DriverCall {
    const char* name;
    std::atomic<int64_t> n_call{0};  ///< since clear()
    static std::vector<DriverCall*>& all() {
        static std::vector<DriverCall*> list;
        return list;
    }
    explicit DriverCall(const char* n) : name(n) { all().push_back(this); }
};

/// Which call fails, and how.
struct DriverFault {
    std::atomic<const DriverCall*> call{nullptr};
    std::atomic<int64_t> until{0};  ///< calls before it
    std::atomic<VkResult> error{VK_SUCCESS};
    std::atomic<bool> met{false};

    void arm(const DriverCall* which, VkResult result, int64_t after) {
        until = after;
        error = result;
        met = false;
        call = which;
    }
    /// True if it was met.
    bool disarm() {
        call = nullptr;
        return met;
    }
    bool hits(const DriverCall* which) {
        if (call.load() != which || until.fetch_sub(1) != 0) return false;
        met = true;
        return true;
    }
};
inline DriverFault driver_fault;
/// Objects of the driver that are not destroyed yet; pipelines, which a device keeps for later, apart.
inline std::atomic<int64_t> n_driver_object{0}, n_driver_pipeline{0};

namespace driver_shim {

/// A handle that no call made.
template <class H>
H spoilt() {
    H h{};
    std::memset(&h, 0xA5, sizeof h);
    return h;
}
template <class H>
void spoil(H* handle) {
    *handle = spoilt<H>();
}

template <class Tag, auto kField>
struct Shim;
template <class Tag, class T, class... A, VkResult (VKAPI_PTR* T::*kField)(A...)>
struct Shim<Tag, kField> {
    static inline VkResult(VKAPI_PTR* real)(A...) = nullptr;
    static inline DriverCall* call_of = nullptr;
    static VkResult VKAPI_PTR call(A... a) {
        ++call_of->n_call;
        if (!driver_fault.hits(call_of)) return real(a...);
        // A lost device runs nothing any more; this one does until it is waited for.
        if (driver_fault.error == VK_ERROR_DEVICE_LOST && Tag::kWaits) (void)real(a...);
        if constexpr (Tag::kMakes) spoil(std::get<sizeof...(A) - 1>(std::tie(a...)));
        return driver_fault.error;
    }
    static void put(T* table, const char* name) {
        if (!(table->*kField) || table->*kField == call) return;
        static DriverCall entry(name);
        call_of = &entry;
        real = table->*kField;
        table->*kField = call;
    }
};
struct Returns {
    static constexpr bool kWaits = false, kMakes = false;
};
struct Waits {
    static constexpr bool kWaits = true, kMakes = false;
};
/// Its last argument is where the handle goes, which is undefined where it fails.
struct Makes {
    static constexpr bool kWaits = false, kMakes = true;
};

/// Counts what one function makes and another destroys. The handle is the last argument of the first.
template <auto kMake, auto kDestroy>
struct Counted;
template <class T, class U, class... A, class... B, VkResult (VKAPI_PTR* T::*kMake)(A...),
          void (VKAPI_PTR* U::*kDestroy)(B...)>
struct Counted<kMake, kDestroy> {
    static inline VkResult(VKAPI_PTR* real_make)(A...) = nullptr;
    static inline void(VKAPI_PTR* real_destroy)(B...) = nullptr;
    static VkResult VKAPI_PTR make(A... a) {
        const VkResult r = real_make(a...);
        if (r == VK_SUCCESS) ++n_driver_object;
        return r;
    }
    static void VKAPI_PTR destroy(B... b) {
        const auto handle = std::get<sizeof...(B) - 2>(std::tie(b...));  // the argument before the allocator
        if (handle == spoilt<std::decay_t<decltype(handle)>>()) {
            FAIL_CHECK("a handle is destroyed that no call made");
            return;
        }
        if (handle != VK_NULL_HANDLE) --n_driver_object;
        real_destroy(b...);
    }
    static void put_make(T* table) {
        if (!(table->*kMake) || table->*kMake == make) return;
        real_make = table->*kMake;
        table->*kMake = make;
    }
    static void put_destroy(U* table) {
        if (!(table->*kDestroy) || table->*kDestroy == destroy) return;
        real_destroy = table->*kDestroy;
        table->*kDestroy = destroy;
    }
};

/// vkCreateComputePipelines makes several at once, and some may be null.
struct CountedPipelines {
    static inline PFN_vkCreateComputePipelines real = nullptr;
    static inline PFN_vkDestroyPipeline real_destroy = nullptr;
    static void VKAPI_PTR destroy(VkDevice d, VkPipeline pipeline, const VkAllocationCallbacks* a) {
        n_driver_pipeline -= pipeline != VK_NULL_HANDLE;
        real_destroy(d, pipeline, a);
    }
    static VkResult VKAPI_PTR make(VkDevice d, VkPipelineCache c, uint32_t n, const VkComputePipelineCreateInfo* info,
                                   const VkAllocationCallbacks* a, VkPipeline* out) {
        const VkResult r = real(d, c, n, info, a, out);
        for (uint32_t i = 0; i < n; ++i) n_driver_pipeline += out[i] != VK_NULL_HANDLE;
        return r;
    }
};

using Device = VolkDeviceTable;
using Instance = vk::InstanceTable;

/// Counts what the device gives out.
inline void count_objects(Device* t) {
#define AUSPEX_COUNT(Make, Destroy)                                \
    Counted<&Device::vk##Make, &Device::vk##Destroy>::put_make(t); \
    Counted<&Device::vk##Make, &Device::vk##Destroy>::put_destroy(t);
    AUSPEX_COUNT(AllocateMemory, FreeMemory)
    AUSPEX_COUNT(CreateBuffer, DestroyBuffer)
    AUSPEX_COUNT(CreateCommandPool, DestroyCommandPool)
    AUSPEX_COUNT(CreateQueryPool, DestroyQueryPool)
    AUSPEX_COUNT(CreateDescriptorSetLayout, DestroyDescriptorSetLayout)
    AUSPEX_COUNT(CreatePipelineLayout, DestroyPipelineLayout)
    AUSPEX_COUNT(CreateDescriptorPool, DestroyDescriptorPool)
    AUSPEX_COUNT(CreateShaderModule, DestroyShaderModule)
    AUSPEX_COUNT(CreatePipelineCache, DestroyPipelineCache)
    AUSPEX_COUNT(CreateSemaphore, DestroySemaphore)
    AUSPEX_COUNT(CreateFence, DestroyFence)
#undef AUSPEX_COUNT
    Counted<&Instance::vkCreateDevice, &Device::vkDestroyDevice>::put_destroy(t);
    if (t->vkCreateComputePipelines == CountedPipelines::make) return;
    CountedPipelines::real = t->vkCreateComputePipelines;
    t->vkCreateComputePipelines = CountedPipelines::make;
    CountedPipelines::real_destroy = t->vkDestroyPipeline;
    t->vkDestroyPipeline = CountedPipelines::destroy;
}

inline void edit_device(Device* t) {
    count_objects(t);
#define AUSPEX_SHIM(name) Shim<Returns, &Device::vk##name>::put(t, "vk" #name);
    AUSPEX_SHIM(AllocateCommandBuffers)
    AUSPEX_SHIM(AllocateDescriptorSets)
    AUSPEX_SHIM(BeginCommandBuffer)
    AUSPEX_SHIM(BindBufferMemory)
    AUSPEX_SHIM(CreateComputePipelines)
    AUSPEX_SHIM(EndCommandBuffer)
    AUSPEX_SHIM(FlushMappedMemoryRanges)
    AUSPEX_SHIM(GetFenceStatus)
    AUSPEX_SHIM(GetPipelineCacheData)
    AUSPEX_SHIM(GetQueryPoolResults)
    AUSPEX_SHIM(GetSemaphoreCounterValue)
    AUSPEX_SHIM(InvalidateMappedMemoryRanges)
    AUSPEX_SHIM(MapMemory)
    AUSPEX_SHIM(QueueSubmit)
    AUSPEX_SHIM(ResetCommandBuffer)
    AUSPEX_SHIM(ResetDescriptorPool)
    AUSPEX_SHIM(ResetFences)
#undef AUSPEX_SHIM
#define AUSPEX_SHIM(name) Shim<Makes, &Device::vk##name>::put(t, "vk" #name);
    AUSPEX_SHIM(AllocateMemory)
    AUSPEX_SHIM(CreateBuffer)
    AUSPEX_SHIM(CreateCommandPool)
    AUSPEX_SHIM(CreateDescriptorPool)
    AUSPEX_SHIM(CreateDescriptorSetLayout)
    AUSPEX_SHIM(CreateFence)
    AUSPEX_SHIM(CreatePipelineCache)
    AUSPEX_SHIM(CreatePipelineLayout)
    AUSPEX_SHIM(CreateQueryPool)
    AUSPEX_SHIM(CreateSemaphore)
    AUSPEX_SHIM(CreateShaderModule)
#undef AUSPEX_SHIM
    Shim<Waits, &Device::vkDeviceWaitIdle>::put(t, "vkDeviceWaitIdle");
    Shim<Waits, &Device::vkWaitForFences>::put(t, "vkWaitForFences");
    Shim<Waits, &Device::vkWaitSemaphores>::put(t, "vkWaitSemaphores");
}

/// Called once before the instance is made and once after.
inline void edit_instance(Instance* t) {
    Counted<&Instance::vkCreateInstance, &Instance::vkDestroyInstance>::put_make(t);
    Counted<&Instance::vkCreateInstance, &Instance::vkDestroyInstance>::put_destroy(t);
    Counted<&Instance::vkCreateDevice, &Device::vkDestroyDevice>::put_make(t);
#define AUSPEX_SHIM(name) Shim<Returns, &Instance::vk##name>::put(t, "vk" #name);
    AUSPEX_SHIM(EnumerateDeviceExtensionProperties)
    AUSPEX_SHIM(EnumerateInstanceExtensionProperties)
    AUSPEX_SHIM(EnumerateInstanceVersion)
    AUSPEX_SHIM(EnumeratePhysicalDevices)
#undef AUSPEX_SHIM
    Shim<Makes, &Instance::vkCreateDevice>::put(t, "vkCreateDevice");
    Shim<Makes, &Instance::vkCreateInstance>::put(t, "vkCreateInstance");
}

}  // namespace driver_shim

/// Puts the functions above under a device that is about to be opened.
inline void shim_driver(vk::OpenDetail* detail) {
    detail->edit_device = driver_shim::edit_device;
    detail->edit_instance = driver_shim::edit_instance;
}

}  // namespace test
#endif  // AUSPEX_NO_VULKAN
