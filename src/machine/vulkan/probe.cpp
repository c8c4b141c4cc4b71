#include "probe.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>
#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace probe_impl {

// Declares VK_KHR_cooperative_matrix, which is newer than the oldest Vulkan headers that auspex builds with.
constexpr const char* kMatrixKhr = "VK_KHR_cooperative_matrix";
// What Vulkan 1.2 made part of itself; a device of 1.1 has it by these names.
constexpr const char* kStorage8 = "VK_KHR_8bit_storage";
constexpr const char* kFloat16Int8 = "VK_KHR_shader_float16_int8";
constexpr const char* kTimeline = "VK_KHR_timeline_semaphore";
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
// A struct joins the chain only if the device's version or an extension defines it; the structs of whole versions
// (VkPhysicalDeviceVulkan12Features and so on) never do, because a device of Vulkan 1.1 knows none of them.
struct FeatureChain {
    VkPhysicalDeviceFeatures2 core{};
    VkPhysicalDevice16BitStorageFeatures storage16{};
    VkPhysicalDevice8BitStorageFeatures storage8{};
    VkPhysicalDeviceShaderFloat16Int8Features small{};
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline{};
    VkPhysicalDeviceVulkanMemoryModelFeatures model{};
    VkPhysicalDeviceBufferDeviceAddressFeatures addresses{};
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot{};
    VkPhysicalDeviceSubgroupSizeControlFeatures size{};
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix_nv{};
    MatrixFeatures matrix_khr{};
    void** tail = nullptr;

    FeatureChain() {
        core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
        storage16.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES;
        storage8.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES;
        small.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES;
        timeline.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES;
        model.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES;
        addresses.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
        dot.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
        size.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES;
        matrix_nv.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV;
        matrix_khr.sType = kMatrixFeaturesType;
        tail = &core.pNext;
        add(&storage16);
    }
    FeatureChain(const FeatureChain&) = delete;
    FeatureChain& operator=(const FeatureChain&) = delete;
    template <class T>
    void add(T* s) {
        *tail = s;
        tail = &s->pNext;
    }
    template <class T>
    static void copy(T* to, const VkBaseInStructure* from) {
        void* next = to->pNext;
        *to = *reinterpret_cast<const T*>(from);
        to->pNext = next;
    }
    // Copies the features that the owner of a borrowed device enabled.
    void read(const void* chain) {
        for (const auto* s = static_cast<const VkBaseInStructure*>(chain); s; s = s->pNext) {
            switch (static_cast<int>(s->sType)) {
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2: copy(&core, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES: copy(&storage16, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES: copy(&storage8, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES: copy(&small, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES: copy(&timeline, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES: copy(&model, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES: copy(&addresses, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES: copy(&dot, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES: copy(&size, s); break;
                case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV: copy(&matrix_nv, s); break;
                case static_cast<int>(kMatrixFeaturesType): copy(&matrix_khr, s); break;
                default: read_version(s); break;
            }
        }
    }

  private:
    // From a struct of all features of a version.
    void read_version(const VkBaseInStructure* s) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES) {
            storage16.storageBuffer16BitAccess =
                reinterpret_cast<const VkPhysicalDeviceVulkan11Features*>(s)->storageBuffer16BitAccess;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
            const auto* f = reinterpret_cast<const VkPhysicalDeviceVulkan12Features*>(s);
            storage8.storageBuffer8BitAccess = f->storageBuffer8BitAccess;
            small.shaderFloat16 = f->shaderFloat16;
            small.shaderInt8 = f->shaderInt8;
            timeline.timelineSemaphore = f->timelineSemaphore;
            model.vulkanMemoryModel = f->vulkanMemoryModel;
            model.vulkanMemoryModelDeviceScope = f->vulkanMemoryModelDeviceScope;
            addresses.bufferDeviceAddress = f->bufferDeviceAddress;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES) {
            const auto* f = reinterpret_cast<const VkPhysicalDeviceVulkan13Features*>(s);
            dot.shaderIntegerDotProduct = f->shaderIntegerDotProduct;
            size.subgroupSizeControl = f->subgroupSizeControl;
            size.computeFullSubgroups = f->computeFullSubgroups;
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
    VkPhysicalDeviceSubgroupProperties subgroup{};
    VkPhysicalDeviceMaintenance3Properties allocation{};
    VkPhysicalDeviceIDProperties id{};
    VkPhysicalDeviceDriverProperties driver{};
    VkPhysicalDeviceFloatControlsProperties floats{};
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
        add(&subgroup, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
        add(&allocation, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
        add(&id, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
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
    bool v12, v13, storage8, small, timeline, dot, size, matrix_khr, matrix_nv;
};

Support supported(uint32_t api_version, const Extensions& present, const VulkanHandles* borrow) {
    auto has = [&](const char* name) {
        if (!borrow) return has_extension(present, name);
        for (const char* e : borrow->enabled_extensions)
            if (std::strcmp(e, name) == 0) return true;
        return false;
    };
    Support s{};
    s.v12 = api_version >= VK_API_VERSION_1_2;
    s.v13 = api_version >= VK_API_VERSION_1_3;
    s.storage8 = s.v12 || has(kStorage8);
    s.small = s.v12 || has(kFloat16Int8);
    s.timeline = s.v12 || has(kTimeline);
    s.dot = s.v13 || has("VK_KHR_shader_integer_dot_product");
    s.size = s.v13 || has("VK_EXT_subgroup_size_control");
    s.matrix_khr = s.v12 && has(kMatrixKhr);  // the modules that use matrices are SPIR-V 1.5
    s.matrix_nv = s.v12 && has("VK_NV_cooperative_matrix");
    return s;
}

void query_properties(const Gpu& gpu, const Extensions& present, const Support& support, PropertyChain* chain) {
    if (support.v12 || has_extension(present, "VK_KHR_driver_properties"))
        chain->add(&chain->driver, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES);
    if (support.v12) chain->add(&chain->floats, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES);
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
    t->driver_name = chain.driver.driverName;
    t->driver_info = chain.driver.driverInfo;
    t->vendor_id = p.vendorID;
    t->device_id = p.deviceID;
    t->driver_id = static_cast<uint32_t>(chain.driver.driverID);
    t->starts_in_order = chain.driver.driverID == VK_DRIVER_ID_NVIDIA_PROPRIETARY;
    t->driver_version = p.driverVersion;
    t->type = p.deviceType;
    copy_uuid(t->pipeline_cache_uuid, p.pipelineCacheUUID);
    copy_uuid(t->driver_uuid, chain.id.driverUUID);
    copy_uuid(t->device_uuid, chain.id.deviceUUID);
    t->timestamp_period_ns = std::isfinite(p.limits.timestampPeriod) ? double(p.limits.timestampPeriod) : 0;
    const VkPhysicalDeviceShaderCorePropertiesAMD& amd = chain.core_amd;
    t->n_core = chain.sm_nv.shaderSMCount
                    ? chain.sm_nv.shaderSMCount
                    : amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
}

void set_limits(const PropertyChain& chain, DeviceTraits* t) {
    const VkPhysicalDeviceLimits& limits = chain.core.properties.limits;
    t->max_storage_range = limits.maxStorageBufferRange;
    t->max_allocation_bytes = chain.allocation.maxMemoryAllocationSize;
    t->max_buffer_bytes = chain.has_buffer ? chain.buffer.maxBufferSize : t->max_allocation_bytes;
    t->max_allocation_count = limits.maxMemoryAllocationCount;
    t->storage_align = std::max<uint64_t>(limits.minStorageBufferOffsetAlignment, 16);
    t->atom_bytes = std::max<uint64_t>(limits.nonCoherentAtomSize, 1);
    t->max_shared_bytes = limits.maxComputeSharedMemorySize;
    t->max_group_invocations = std::min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]);
    for (int i = 0; i < 3; ++i) {
        t->max_group_size[i] = limits.maxComputeWorkGroupSize[i];
        t->max_group_count[i] = limits.maxComputeWorkGroupCount[i];
    }
    t->max_storage_bindings =
        std::min(limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers);
    t->subgroup_size = t->subgroup_min = t->subgroup_max = chain.subgroup.subgroupSize;
    if (chain.subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT)
        t->subgroup_ops = chain.subgroup.supportedOperations;
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
    t->float16 = f.small.shaderFloat16 != 0;
    t->int8 = f.small.shaderInt8 != 0;
    t->int16 = f.core.features.shaderInt16 != 0;
    t->int64 = f.core.features.shaderInt64 != 0;
    t->storage16 = f.storage16.storageBuffer16BitAccess != 0;
    t->storage8 = f.storage8.storageBuffer8BitAccess != 0;
    t->timeline = f.timeline.timelineSemaphore != 0;
    t->rounding_rte16 = chain.floats.shaderRoundingModeRTEFloat16 != 0;
    t->keep_nan32 = chain.floats.shaderSignedZeroInfNanPreserveFloat32 != 0;
    t->memory_model = f.model.vulkanMemoryModel != 0 && f.model.vulkanMemoryModelDeviceScope != 0;
    t->addresses =
        f.addresses.bufferDeviceAddress != 0 && chain.core.properties.limits.maxPushConstantsSize >= kPushAllBytes;
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
    if (support.storage8) features.add(&features.storage8);
    if (support.small) features.add(&features.small);
    if (support.timeline) features.add(&features.timeline);
    if (support.v12) features.add(&features.model);
    if (support.v12) features.add(&features.addresses);
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

    if (!support.v12 && t.storage8) need->push_back(probe_impl::kStorage8);
    if (!support.v12 && (t.float16 || t.int8)) need->push_back(probe_impl::kFloat16Int8);
    if (!support.v12 && t.timeline) need->push_back(probe_impl::kTimeline);
    if (!support.v13 && t.dot) need->push_back("VK_KHR_shader_integer_dot_product");
    if (!support.v13 && (t.subgroup_size_control || t.full_subgroups)) need->push_back("VK_EXT_subgroup_size_control");
    if (has_extension(present, "VK_KHR_portability_subset")) need->push_back("VK_KHR_portability_subset");
}

VkResult create_device(Gpu* gpu, std::vector<const char*> extensions) {
    const DeviceTraits& t = gpu->traits;
    probe_impl::FeatureChain f;
    f.core.features.shaderInt16 = t.int16;
    f.core.features.shaderInt64 = t.int64;
    f.storage16.storageBuffer16BitAccess = t.storage16;
    f.storage8.storageBuffer8BitAccess = t.storage8;
    f.small.shaderFloat16 = t.float16;
    f.small.shaderInt8 = t.int8;
    f.timeline.timelineSemaphore = t.timeline;
    f.model.vulkanMemoryModel = f.model.vulkanMemoryModelDeviceScope = t.memory_model;
    f.addresses.bufferDeviceAddress = t.addresses;
    f.dot.shaderIntegerDotProduct = t.dot;
    f.size.subgroupSizeControl = t.subgroup_size_control;
    f.size.computeFullSubgroups = t.full_subgroups;
    if (t.storage8) f.add(&f.storage8);
    if (t.float16 || t.int8) f.add(&f.small);
    if (t.timeline) f.add(&f.timeline);
    if (t.memory_model) f.add(&f.model);
    if (t.addresses) f.add(&f.addresses);
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
    info.usage = t.buffer_usage();  // a buffer of more uses may be kept out of more types
    VkBuffer sample = VK_NULL_HANDLE;
    AUSPEX_TRY(gpu->check(gpu->vk.vkCreateBuffer(gpu->device, &info, nullptr, &sample), "vkCreateBuffer"));
    VkMemoryRequirements need{};
    gpu->vk.vkGetBufferMemoryRequirements(gpu->device, sample, &need);
    gpu->vk.vkDestroyBuffer(gpu->device, sample, nullptr);

    constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    constexpr VkMemoryPropertyFlags kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
    constexpr VkMemoryPropertyFlags kCoherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    constexpr VkMemoryPropertyFlags kPlain = kLocal | kVisible | kCoherent | kCached;  // others: not used
    // Among the types that have all of `must`: the bits of `want` count by their value, so that cached memory comes
    // before coherent memory; -1 for each of `avoid`; on a tie, the larger heap. Heap `but_heap` is left out.
    auto choose = [&](VkMemoryPropertyFlags must, VkMemoryPropertyFlags want, VkMemoryPropertyFlags avoid,
                      uint32_t but_heap = UINT32_MAX) {
        uint32_t best = UINT32_MAX;
        int best_score = -1;
        uint64_t best_heap = 0;
        for (uint32_t i = 0; i < t.memory.memoryTypeCount; ++i) {
            const VkMemoryPropertyFlags has = t.memory.memoryTypes[i].propertyFlags;
            if (!(need.memoryTypeBits >> i & 1u) || (has & must) != must || (has & ~kPlain)) continue;
            if (t.heap_of(i) == but_heap) continue;
            int score = 8 + static_cast<int>(has & want);
            for (VkMemoryPropertyFlags bit = 1; bit <= kCached; bit <<= 1) score -= (has & avoid & bit) ? 1 : 0;
            const uint64_t heap = t.memory.memoryHeaps[t.heap_of(i)].size;
            if (score > best_score || (score == best_score && heap > best_heap)) {
                best = i;
                best_score = score;
                best_heap = heap;
            }
        }
        return best;
    };
    // Use the largest device-local heap. The host-visible window of a discrete card is a heap of its own, usually of
    // 256 MiB; with ReBAR it is the large heap itself.
    uint32_t local = choose(kLocal, 0, kVisible | kCached);
    uint32_t biggest = UINT32_MAX;
    for (uint32_t i = 0; i < t.memory.memoryTypeCount; ++i) {
        const VkMemoryPropertyFlags has = t.memory.memoryTypes[i].propertyFlags;
        if (!(need.memoryTypeBits >> i & 1u) || !(has & kLocal) || (has & ~kPlain)) continue;
        if (biggest == UINT32_MAX ||
            t.memory.memoryHeaps[t.heap_of(i)].size > t.memory.memoryHeaps[t.heap_of(biggest)].size)
            biggest = i;
    }
    if (local == UINT32_MAX || biggest == UINT32_MAX)
        return fail(Code::no_device, t.name, " has no device-local memory for storage buffers.");
    if (t.heap_of(local) != t.heap_of(biggest)) local = biggest;
    const uint32_t mapped = choose(kLocal | kVisible | kCoherent, 0, kCached);
    const bool can_map = mapped != UINT32_MAX && t.heap_of(mapped) == t.heap_of(local);
    const bool want_map = direct_upload < 0 ? t.uma : direct_upload != 0;
    t.type_device = can_map && want_map ? mapped : local;
    const auto flags_of = [&](uint32_t type) { return t.memory.memoryTypes[type].propertyFlags; };
    t.device_mapped = (flags_of(t.type_device) & (kVisible | kCoherent)) == (kVisible | kCoherent);
    // Where memory is shared, uploads take another heap than kernels if there is one, so that kernels can spill to it:
    // RADV cuts the memory of an APU into a device-local heap of two thirds, which the host sees, and one of the rest.
    if (t.uma) t.type_upload = choose(kVisible | kCoherent, 0, 0, t.heap_of(t.type_device));
    if (t.type_upload == UINT32_MAX) t.type_upload = choose(kVisible | kCoherent, 0, t.uma ? 0 : kLocal);
    t.type_readback = choose(kVisible, kCached | kCoherent, t.uma ? 0 : kLocal);
    if (t.type_upload == UINT32_MAX || t.type_readback == UINT32_MAX)
        return fail(Code::no_device, t.name, " has no memory that the host can write.");
    t.device_readable = (flags_of(t.type_device) & kCached) >= (flags_of(t.type_readback) & kCached);
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
             t.timestamp_period_ns, " ns, ", t.timeline ? "timeline semaphores" : "fences",
             t.starts_in_order ? ", dispatches start in order" : "", "\n");
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
AUSPEX_SMALL_CODE_END
#endif  // AUSPEX_NO_VULKAN
