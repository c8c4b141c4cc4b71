#include "probe.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace probe_impl {

// Declares VK_KHR_cooperative_matrix, which is newer than the oldest Vulkan headers that auspex builds with.
constexpr const char* kMatrixKhr = "VK_KHR_cooperative_matrix";
constexpr auto kMatrixFeaturesType = static_cast<VkStructureType>(1000506000);
constexpr auto kMatrixPropertiesType = static_cast<VkStructureType>(1000506001);
constexpr uint32_t kScopeSubgroup = 3;
struct MatrixFeatures {
    VkStructureType sType;
    void* pNext;
    VkBool32 matrix, robust;
};
struct MatrixProperties {
    VkStructureType sType;
    void* pNext;
    uint32_t m, n, k;
    uint32_t a, b, c, result;
    VkBool32 saturating;
    uint32_t scope;
};
using GetMatrixProperties = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, MatrixProperties*);

// All optional features. The driver fills it, or read() does from a borrowed device, or it is passed to vkCreateDevice.
// A struct joins the chain only if the device's version or an extension defines it.
struct FeatureChain {
    VkPhysicalDeviceFeatures2 core{};
    VkPhysicalDeviceVulkan11Features v11{};
    VkPhysicalDeviceVulkan12Features v12{};
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot{};
    VkPhysicalDeviceSubgroupSizeControlFeatures size{};
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix_nv{};
    MatrixFeatures matrix_khr{};
    void** tail = nullptr;

    FeatureChain() {
        core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
        v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
        v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
        dot.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
        size.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES;
        matrix_nv.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV;
        matrix_khr.sType = kMatrixFeaturesType;
        tail = &core.pNext;
        add(&v11);
        add(&v12);
    }
    FeatureChain(const FeatureChain&) = delete;
    FeatureChain& operator=(const FeatureChain&) = delete;
    template <class T>
    void add(T* s) {
        *tail = s;
        tail = &s->pNext;
    }
    // Copies the features that the owner of a borrowed device enabled.
    void read(const void* chain) {
        for (const auto* s = static_cast<const VkBaseInStructure*>(chain); s; s = s->pNext) {
            switch (static_cast<int>(s->sType)) {
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2:
                    core.features = reinterpret_cast<const VkPhysicalDeviceFeatures2*>(s)->features;
                    break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES:
                    v11.storageBuffer16BitAccess =
                        reinterpret_cast<const VkPhysicalDeviceVulkan11Features*>(s)->storageBuffer16BitAccess;
                    break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES:
                    v11.storageBuffer16BitAccess =
                        reinterpret_cast<const VkPhysicalDevice16BitStorageFeatures*>(s)->storageBuffer16BitAccess;
                    break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES: {
                    void* next = v12.pNext;
                    v12 = *reinterpret_cast<const VkPhysicalDeviceVulkan12Features*>(s);
                    v12.pNext = next;
                    break;
                }
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES:
                    v12.timelineSemaphore =
                        reinterpret_cast<const VkPhysicalDeviceTimelineSemaphoreFeatures*>(s)->timelineSemaphore;
                    break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES: {
                    const auto* f = reinterpret_cast<const VkPhysicalDeviceVulkan13Features*>(s);
                    dot.shaderIntegerDotProduct = f->shaderIntegerDotProduct;
                    size.subgroupSizeControl = f->subgroupSizeControl;
                    size.computeFullSubgroups = f->computeFullSubgroups;
                    break;
                }
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES:
                    dot.shaderIntegerDotProduct =
                        reinterpret_cast<const VkPhysicalDeviceShaderIntegerDotProductFeatures*>(s)
                            ->shaderIntegerDotProduct;
                    break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES: {
                    const auto* f = reinterpret_cast<const VkPhysicalDeviceSubgroupSizeControlFeatures*>(s);
                    size.subgroupSizeControl = f->subgroupSizeControl;
                    size.computeFullSubgroups = f->computeFullSubgroups;
                    break;
                }
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV:
                    matrix_nv.cooperativeMatrix =
                        reinterpret_cast<const VkPhysicalDeviceCooperativeMatrixFeaturesNV*>(s)->cooperativeMatrix;
                    break;
                case static_cast<int>(kMatrixFeaturesType):
                    matrix_khr.matrix = reinterpret_cast<const MatrixFeatures*>(s)->matrix;
                    break;
                default: break;
            }
        }
    }
};

template <class T>
void copy_uuid(T& to, const uint8_t* from) {
    std::memcpy(to, from, VK_UUID_SIZE);
}

void probe_shapes(const Gpu& gpu, DeviceTraits* t) {
    if (t->matrix_khr) {
        GetMatrixProperties get = nullptr;
        take_instance(gpu.vki, gpu.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", &get);
        uint32_t n = 0;
        if (!get || get(gpu.physical, &n, nullptr) < 0) n = 0;
        MatrixProperties blank{};
        blank.sType = kMatrixPropertiesType;
        std::vector<MatrixProperties> all(n, blank);
        if (n == 0 || get(gpu.physical, &n, all.data()) < 0) n = 0;
        for (uint32_t i = 0; i < n; ++i) {
            const MatrixProperties& p = all[i];
            if (p.scope == kScopeSubgroup)
                t->matrix_shapes.push_back({p.m, p.n, p.k, Component(p.a), Component(p.b), Component(p.c),
                                            Component(p.result), p.saturating != 0});
        }
        if (t->matrix_shapes.empty()) t->matrix_khr = false;
    }
    if (t->matrix_nv) {
        PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV get = nullptr;
        take_instance(gpu.vki, gpu.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV", &get);
        uint32_t n = 0;
        if (!get || get(gpu.physical, &n, nullptr) < 0) n = 0;
        VkCooperativeMatrixPropertiesNV blank{};
        blank.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_NV;
        std::vector<VkCooperativeMatrixPropertiesNV> all(n, blank);
        if (n == 0 || get(gpu.physical, &n, all.data()) < 0) n = 0;
        if (n == 0) t->matrix_nv = false;
        for (uint32_t i = 0; i < n && !t->matrix_khr; ++i) {
            const VkCooperativeMatrixPropertiesNV& p = all[i];
            if (p.scope == VK_SCOPE_SUBGROUP_NV)  // component types have the same values in KHR
                t->matrix_shapes.push_back({p.MSize, p.NSize, p.KSize, Component(p.AType), Component(p.BType),
                                            Component(p.CType), Component(p.DType), false});
        }
    }
}

// All properties that are read. A struct joins the chain only if the device's version or an extension defines it.
struct PropertyChain {
    VkPhysicalDeviceProperties2 core{};
    VkPhysicalDeviceVulkan11Properties v11{};
    VkPhysicalDeviceVulkan12Properties v12{};
    VkPhysicalDeviceMaintenance4Properties buffer{};
    VkPhysicalDeviceSubgroupSizeControlProperties size{};
    VkPhysicalDeviceShaderIntegerDotProductProperties dot{};
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV sm_nv{};
    VkPhysicalDeviceShaderCorePropertiesAMD core_amd{};
    bool has_buffer = false;  ///< `buffer` was filled
    void** tail = nullptr;

    PropertyChain() {
        core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
        tail = &core.pNext;
        add(&v11, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES);
        add(&v12, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES);
    }
    PropertyChain(const PropertyChain&) = delete;
    PropertyChain& operator=(const PropertyChain&) = delete;
    template <class T>
    void add(T* s, VkStructureType type) {
        s->sType = type;
        *tail = s;
        tail = &s->pNext;
    }
};

using Extensions = std::vector<VkExtensionProperties>;

// Optional features that may be queried, by API version or extension. On a borrowed device, only extensions that its
// owner enabled count.
struct Support {
    bool v13, dot, size, matrix_khr, matrix_nv;
};

Support supported(uint32_t api_version, const Extensions& present, const VulkanHandles* borrow) {
    auto has = [&](const char* name) {
        if (!borrow) return has_extension(present, name);
        for (const char* e : borrow->enabled_extensions)
            if (std::strcmp(e, name) == 0) return true;
        return false;
    };
    Support s{};
    s.v13 = api_version >= VK_API_VERSION_1_3;
    s.dot = s.v13 || has("VK_KHR_shader_integer_dot_product");
    s.size = s.v13 || has("VK_EXT_subgroup_size_control");
    s.matrix_khr = has(kMatrixKhr);
    s.matrix_nv = has("VK_NV_cooperative_matrix");
    return s;
}

void query_properties(const Gpu& gpu, const Extensions& present, const Support& support, PropertyChain* chain) {
    chain->has_buffer = support.v13 || has_extension(present, "VK_KHR_maintenance4");
    if (chain->has_buffer) chain->add(&chain->buffer, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES);
    if (support.size) chain->add(&chain->size, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES);
    if (support.dot) chain->add(&chain->dot, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES);
    if (has_extension(present, "VK_NV_shader_sm_builtins"))
        chain->add(&chain->sm_nv, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV);
    if (has_extension(present, "VK_AMD_shader_core_properties"))
        chain->add(&chain->core_amd, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD);
    gpu.vki.vkGetPhysicalDeviceProperties2(gpu.physical, &chain->core);
}

void set_identity(const PropertyChain& chain, DeviceTraits* t) {
    const VkPhysicalDeviceProperties& p = chain.core.properties;
    t->name = p.deviceName;
    t->driver_name = chain.v12.driverName;
    t->driver_info = chain.v12.driverInfo;
    t->vendor_id = p.vendorID;
    t->device_id = p.deviceID;
    t->driver_id = static_cast<uint32_t>(chain.v12.driverID);
    t->driver_version = p.driverVersion;
    t->type = p.deviceType;
    copy_uuid(t->pipeline_cache_uuid, p.pipelineCacheUUID);
    copy_uuid(t->driver_uuid, chain.v11.driverUUID);
    copy_uuid(t->device_uuid, chain.v11.deviceUUID);
    t->timestamp_period_ns = double(p.limits.timestampPeriod);
    const VkPhysicalDeviceShaderCorePropertiesAMD& amd = chain.core_amd;
    t->n_core = chain.sm_nv.shaderSMCount
                    ? chain.sm_nv.shaderSMCount
                    : amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
}

void set_limits(const PropertyChain& chain, DeviceTraits* t) {
    const VkPhysicalDeviceLimits& limits = chain.core.properties.limits;
    const VkPhysicalDeviceVulkan11Properties& v11 = chain.v11;
    t->max_storage_range = limits.maxStorageBufferRange;
    t->max_allocation_bytes = v11.maxMemoryAllocationSize;
    t->max_buffer_bytes = chain.has_buffer ? chain.buffer.maxBufferSize : v11.maxMemoryAllocationSize;
    t->max_allocation_count = limits.maxMemoryAllocationCount;
    t->storage_align = std::max<uint64_t>(limits.minStorageBufferOffsetAlignment, 16);
    t->atom_bytes = std::max<uint64_t>(limits.nonCoherentAtomSize, 1);
    t->max_shared_bytes = limits.maxComputeSharedMemorySize;
    t->max_group_invocations = limits.maxComputeWorkGroupInvocations;
    for (int i = 0; i < 3; ++i) {
        t->max_group_size[i] = limits.maxComputeWorkGroupSize[i];
        t->max_group_count[i] = limits.maxComputeWorkGroupCount[i];
    }
    t->max_storage_bindings =
        std::min(limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers);
    t->subgroup_size = t->subgroup_min = t->subgroup_max = v11.subgroupSize;
    if (v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) t->subgroup_ops = v11.subgroupSupportedOperations;
}

void set_features(const PropertyChain& chain, const FeatureChain& f, DeviceTraits* t) {
    t->dot = f.dot.shaderIntegerDotProduct != 0;
    t->dot_accelerated = t->dot && chain.dot.integerDotProduct4x8BitPackedSignedAccelerated != 0;
    t->subgroup_size_control =
        f.size.subgroupSizeControl != 0 && (chain.size.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
    t->full_subgroups = f.size.computeFullSubgroups != 0;
    if (t->subgroup_size_control) {
        t->subgroup_min = chain.size.minSubgroupSize;
        t->subgroup_max = chain.size.maxSubgroupSize;
        t->max_group_subgroups = chain.size.maxComputeWorkgroupSubgroups;
    }
    t->float16 = f.v12.shaderFloat16 != 0;
    t->int8 = f.v12.shaderInt8 != 0;
    t->int16 = f.core.features.shaderInt16 != 0;
    t->int64 = f.core.features.shaderInt64 != 0;
    t->storage16 = f.v11.storageBuffer16BitAccess != 0;
    t->timeline = f.v12.timelineSemaphore != 0;
    t->storage8 = f.v12.storageBuffer8BitAccess != 0;
    t->rounding_rte32 = chain.v12.shaderRoundingModeRTEFloat32 != 0;
    t->keep_nan32 = chain.v12.shaderSignedZeroInfNanPreserveFloat32 != 0;
    t->memory_model = f.v12.vulkanMemoryModel != 0 && f.v12.vulkanMemoryModelDeviceScope != 0;
    t->addresses = f.v12.bufferDeviceAddress != 0 && chain.core.properties.limits.maxPushConstantsSize >= kPushAllBytes;
    t->matrix_khr = f.matrix_khr.matrix != 0 && t->memory_model;
    t->matrix_nv = f.matrix_nv.cooperativeMatrix != 0 && t->memory_model;
}

void query_memory(const Gpu& gpu, DeviceTraits* t) {
    VkPhysicalDeviceMemoryProperties2 m{};
    m.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    gpu.vki.vkGetPhysicalDeviceMemoryProperties2(gpu.physical, &m);
    t->memory = m.memoryProperties;
    t->uma = t->is_cpu() || t->type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    bool all_local = t->memory.memoryHeapCount > 0;
    for (uint32_t i = 0; i < t->memory.memoryHeapCount; ++i)
        all_local = all_local && (t->memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT);
    t->uma = t->uma || all_local;
}

}  // namespace probe_impl

bool has_extension(const std::vector<VkExtensionProperties>& all, const char* name) {
    for (const VkExtensionProperties& e : all)
        if (std::strcmp(e.extensionName, name) == 0) return true;
    return false;
}

std::string version_text(uint32_t v) {
    return say(VK_API_VERSION_MAJOR(v), ".", VK_API_VERSION_MINOR(v), ".", VK_API_VERSION_PATCH(v));
}

void probe(Gpu* gpu, const VulkanHandles* borrow, std::vector<const char*>* need) {
    const InstanceTable& vki = gpu->vki;
    DeviceTraits& t = gpu->traits;
    const auto present = enumerate<VkExtensionProperties>([&](uint32_t* n, VkExtensionProperties* p) {
        return vki.vkEnumerateDeviceExtensionProperties(gpu->physical, nullptr, n, p);
    });
    VkPhysicalDeviceProperties2 basic{};
    basic.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    vki.vkGetPhysicalDeviceProperties2(gpu->physical, &basic);
    t.api_version = basic.properties.apiVersion;
    const probe_impl::Support support = probe_impl::supported(t.api_version, present, borrow);

    probe_impl::PropertyChain properties;
    probe_impl::query_properties(*gpu, present, support, &properties);
    probe_impl::set_identity(properties, &t);
    probe_impl::set_limits(properties, &t);

    probe_impl::FeatureChain features;
    if (support.dot) features.add(&features.dot);
    if (support.size) features.add(&features.size);
    if (support.matrix_khr) features.add(&features.matrix_khr);
    if (support.matrix_nv) features.add(&features.matrix_nv);
    if (borrow)
        features.read(borrow->enabled_features);
    else
        vki.vkGetPhysicalDeviceFeatures2(gpu->physical, &features.core);
    t.borrowed = borrow != nullptr;
    probe_impl::set_features(properties, features, &t);
    t.memory_budget = has_extension(present, "VK_EXT_memory_budget");
    probe_impl::probe_shapes(*gpu, &t);
    probe_impl::query_memory(*gpu, &t);

    if (!support.v13 && t.dot) need->push_back("VK_KHR_shader_integer_dot_product");
    if (!support.v13 && (t.subgroup_size_control || t.full_subgroups)) need->push_back("VK_EXT_subgroup_size_control");
    if (has_extension(present, "VK_KHR_portability_subset")) need->push_back("VK_KHR_portability_subset");
}

VkResult create_device(Gpu* gpu, std::vector<const char*> extensions) {
    const DeviceTraits& t = gpu->traits;
    probe_impl::FeatureChain f;
    f.v12.timelineSemaphore = t.timeline;
    f.v12.shaderFloat16 = t.float16;
    f.v12.shaderInt8 = t.int8;
    f.v12.storageBuffer8BitAccess = t.storage8;
    f.v12.vulkanMemoryModel = f.v12.vulkanMemoryModelDeviceScope = t.memory_model;
    f.v12.bufferDeviceAddress = t.addresses;
    f.v11.storageBuffer16BitAccess = t.storage16;
    f.core.features.shaderInt16 = t.int16;
    f.core.features.shaderInt64 = t.int64;
    f.dot.shaderIntegerDotProduct = t.dot;
    f.size.subgroupSizeControl = t.subgroup_size_control;
    f.size.computeFullSubgroups = t.full_subgroups;
    if (t.dot) f.add(&f.dot);
    if (t.subgroup_size_control || t.full_subgroups) f.add(&f.size);
    if (t.matrix_khr) {
        f.matrix_khr.matrix = VK_TRUE;
        f.add(&f.matrix_khr);
        extensions.push_back(probe_impl::kMatrixKhr);
    }
    if (t.matrix_nv) {
        f.matrix_nv.cooperativeMatrix = VK_TRUE;
        f.add(&f.matrix_nv);
        extensions.push_back("VK_NV_cooperative_matrix");
    }
    const float priority = 1;
    VkDeviceQueueCreateInfo queue{};
    queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queue.queueFamilyIndex = t.queue_family;
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    info.pNext = &f.core;
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    info.ppEnabledExtensionNames = extensions.data();
    const VkResult r = gpu->vki.vkCreateDevice(gpu->physical, &info, nullptr, &gpu->device);
    if (r != VK_SUCCESS) gpu->device = VK_NULL_HANDLE;
    return r;
}

void drop_optional(DeviceTraits* t) {
    t->dot = t->dot_accelerated = t->subgroup_size_control = t->full_subgroups = false;
    t->float16 = t->int8 = t->int16 = t->int64 = t->storage16 = t->storage8 = t->memory_model = t->addresses = false;
    t->timeline = false;
    t->matrix_khr = t->matrix_nv = false;
    t->matrix_shapes.clear();
    t->subgroup_min = t->subgroup_max = t->subgroup_size;
}

Status choose_memory(Gpu* gpu, int direct_upload) {
    DeviceTraits& t = gpu->traits;
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = 4096;
    info.usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VkBuffer sample = VK_NULL_HANDLE;
    if (VkResult r = gpu->vk.vkCreateBuffer(gpu->device, &info, nullptr, &sample); r != VK_SUCCESS)
        return gpu->check(r, "vkCreateBuffer");
    VkMemoryRequirements need{};
    gpu->vk.vkGetBufferMemoryRequirements(gpu->device, sample, &need);
    gpu->vk.vkDestroyBuffer(gpu->device, sample, nullptr);

    constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    constexpr VkMemoryPropertyFlags kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
    constexpr VkMemoryPropertyFlags kCoherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    constexpr VkMemoryPropertyFlags kPlain = kLocal | kVisible | kCoherent | kCached;  // others: not used
    // Among the types that have all of `must`: +2 for each bit of `want`, -1 for each of `avoid`; on a tie, the larger
    // heap.
    auto choose = [&](VkMemoryPropertyFlags must, VkMemoryPropertyFlags want, VkMemoryPropertyFlags avoid) {
        uint32_t best = UINT32_MAX;
        int best_score = -1;
        uint64_t best_heap = 0;
        for (uint32_t i = 0; i < t.memory.memoryTypeCount; ++i) {
            const VkMemoryPropertyFlags has = t.memory.memoryTypes[i].propertyFlags;
            if (!(need.memoryTypeBits >> i & 1u) || (has & must) != must || (has & ~kPlain)) continue;
            int score = 8;
            for (VkMemoryPropertyFlags bit = 1; bit <= kCached; bit <<= 1)
                score += ((has & want & bit) ? 2 : 0) - ((has & avoid & bit) ? 1 : 0);
            const uint64_t heap = t.memory.memoryHeaps[t.memory.memoryTypes[i].heapIndex].size;
            if (score > best_score || (score == best_score && heap > best_heap)) {
                best = i;
                best_score = score;
                best_heap = heap;
            }
        }
        return best;
    };
    auto heap_of = [&](uint32_t type) { return t.memory.memoryTypes[type].heapIndex; };
    // Use the largest device-local heap. The host-visible window of a discrete card is a heap of its own, usually of
    // 256 MiB; with ReBAR it is the large heap itself.
    uint32_t local = choose(kLocal, 0, kVisible | kCached);
    uint32_t biggest = UINT32_MAX;
    for (uint32_t i = 0; i < t.memory.memoryTypeCount; ++i) {
        const VkMemoryPropertyFlags has = t.memory.memoryTypes[i].propertyFlags;
        if (!(need.memoryTypeBits >> i & 1u) || !(has & kLocal) || (has & ~kPlain)) continue;
        if (biggest == UINT32_MAX ||
            t.memory.memoryHeaps[heap_of(i)].size > t.memory.memoryHeaps[heap_of(biggest)].size)
            biggest = i;
    }
    if (local == UINT32_MAX || biggest == UINT32_MAX)
        return fail(Code::no_device, t.name, " has no device-local memory for storage buffers.");
    if (heap_of(local) != heap_of(biggest)) local = biggest;
    const uint32_t mapped = choose(kLocal | kVisible | kCoherent, 0, kCached);
    const bool can_map = mapped != UINT32_MAX && heap_of(mapped) == heap_of(local);
    const bool want_map = direct_upload < 0 ? t.uma : direct_upload != 0;
    t.type_device = can_map && want_map ? mapped : local;
    t.device_mapped =
        (t.memory.memoryTypes[t.type_device].propertyFlags & (kVisible | kCoherent)) == (kVisible | kCoherent);
    t.type_upload = choose(kVisible | kCoherent, 0, t.uma ? 0 : kLocal);
    t.type_readback = choose(kVisible, kCached | kCoherent, t.uma ? 0 : kLocal);
    if (t.type_upload == UINT32_MAX || t.type_readback == UINT32_MAX)
        return fail(Code::no_device, t.name, " has no memory that the host can write.");
    return {};
}

const char* DeviceTraits::type_name() const {
    switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete";
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated";
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual";
        case VK_PHYSICAL_DEVICE_TYPE_CPU: return "software";
        default: return "other";
    }
}

std::string describe(const DeviceTraits& t) {
    auto yes = [](bool b) { return b ? "yes" : "no"; };
    auto mib = [](uint64_t b) { return say(b >> 20, " MiB"); };
    auto type = [&](uint32_t i) {
        if (i == UINT32_MAX) return std::string("none");
        const VkMemoryType& m = t.memory.memoryTypes[i];
        const VkMemoryPropertyFlags f = m.propertyFlags;
        return say("type ", i, " (", f & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT ? "device" : "host",
                   f & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT ? " visible" : "",
                   f & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT ? " coherent" : "",
                   f & VK_MEMORY_PROPERTY_HOST_CACHED_BIT ? " cached" : "", ", heap of ",
                   mib(t.memory.memoryHeaps[m.heapIndex].size), ")");
    };
    static constexpr const char* kComponents[] = {"f16", "f32", "f64", "s8",  "s16", "s32",
                                                  "s64", "u8",  "u16", "u32", "u64"};
    auto component = [](Component c) {
        if (uint32_t(c) < 11) return std::string(kComponents[uint32_t(c)]);
        return uint32_t(c) == 1000141000 ? std::string("bf16") : say("type", uint32_t(c));
    };
    std::string s;
    s += say("device      ", t.name, " (", t.type_name(), ", vendor ", t.vendor_id, ", device ", t.device_id,
             t.borrowed ? ", borrowed" : "", t.n_core ? say(", ", t.n_core, " cores") : "", ")\n");
    s += say("driver      ", t.driver_name, " ", t.driver_info, ", Vulkan ", version_text(t.api_version), "\n");
    s += say("queue       family ", t.queue_family, ", timestamps ", t.timestamp_bits, " bits of ",
             t.timestamp_period_ns, " ns, ", t.timeline ? "timeline semaphores" : "fences", "\n");
    s += say("memory      ", t.uma ? "shared with the host" : "its own", "; kernels ", type(t.type_device), "; upload ",
             type(t.type_upload), "; readback ", type(t.type_readback), "; budget ",
             t.memory_budget ? "reported" : "estimated", "\n");
    s += say("limits      binding ", mib(t.max_storage_range), ", allocation ", mib(t.max_allocation_bytes),
             ", buffer ", mib(t.max_buffer_bytes), ", shared ", t.max_shared_bytes, " bytes, group ",
             t.max_group_invocations, ", bindings ", t.max_storage_bindings, "\n");
    s += say("subgroups   ", t.subgroup_size, " (", t.subgroup_min, "..", t.subgroup_max, "), required size ",
             yes(t.subgroup_size_control), ", full ", yes(t.full_subgroups), ", shuffle ", yes(t.shuffle()), "\n");
    s += say("arithmetic  integer dot ", t.dot ? (t.dot_accelerated ? "native" : "emulated") : "no", ", f16 ",
             yes(t.float16), ", i8 ", yes(t.int8), ", i16 ", yes(t.int16), ", i64 ", yes(t.int64), ", 16-bit buffers ",
             yes(t.storage16), ", 8-bit buffers ", yes(t.storage8), "\n");
    s += say("matrices    KHR ", yes(t.matrix_khr), ", NV ", yes(t.matrix_nv));
    for (const MatrixShape& m : t.matrix_shapes)
        s += say("; ", m.m, "x", m.n, "x", m.k, " ", component(m.a), "*", component(m.b), "+", component(m.c),
                 m.saturating ? " saturating" : "");
    return s + "\n";
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
