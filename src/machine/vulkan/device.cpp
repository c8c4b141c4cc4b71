#include "loader.h"
#include "probe.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace device_impl {

// ------------------------------------------------------------------------------------- the tables

template <class F>
bool take_device(const InstanceTable& t, VkDevice device, const char* name, F* out) {
    *out = reinterpret_cast<F>(t.vkGetDeviceProcAddr(device, name));
    return *out != nullptr;
}

/// A function that Vulkan 1.2 took from a KHR extension, by the name that the device's version has for it; by the other
/// where a borrowed instance was made for another version than the device's.
template <class F>
bool take_promoted(const Gpu& gpu, const char* name, F* out) {
    const std::string khr = say(name, "KHR");
    const bool core = gpu.traits.api_version >= VK_API_VERSION_1_2;
    return take_device(gpu.vki, gpu.device, core ? name : khr.c_str(), out) ||
           take_device(gpu.vki, gpu.device, core ? khr.c_str() : name, out);
}

Status load_instance_functions(Gpu* gpu, VkInstance instance) {
    InstanceTable& t = gpu->vki;
    const char* missing = nullptr;
#define AUSPEX_TAKE(name) \
    if (!take_instance(t, instance, #name, &t.name)) missing = #name;
    AUSPEX_TAKE(vkEnumeratePhysicalDevices)
    AUSPEX_TAKE(vkEnumerateDeviceExtensionProperties)
    AUSPEX_TAKE(vkGetPhysicalDeviceProperties2)
    AUSPEX_TAKE(vkGetPhysicalDeviceFeatures2)
    AUSPEX_TAKE(vkGetPhysicalDeviceMemoryProperties2)
    AUSPEX_TAKE(vkGetPhysicalDeviceQueueFamilyProperties)
    AUSPEX_TAKE(vkGetDeviceProcAddr)
    AUSPEX_TAKE(vkCreateDevice)
    AUSPEX_TAKE(vkDestroyInstance)
#undef AUSPEX_TAKE
    if (missing) return fail(Code::no_device, "the Vulkan instance has no ", missing, ": version 1.1 is needed.");
    take_instance(t, instance, "vkCreateDebugUtilsMessengerEXT", &t.vkCreateDebugUtilsMessengerEXT);
    take_instance(t, instance, "vkDestroyDebugUtilsMessengerEXT", &t.vkDestroyDebugUtilsMessengerEXT);
    return {};
}

// volkLoadDeviceTable() would go through volk's global vkGetDeviceProcAddr, which belongs to the
// host; so the functions in use are listed here and the rest of the table stays null.
Status load_device_functions(Gpu* gpu) {
    const InstanceTable& t = gpu->vki;
    VolkDeviceTable& d = gpu->vk;
    const char* missing = nullptr;
#define AUSPEX_TAKE(name) \
    if (!take_device(t, gpu->device, #name, &d.name)) missing = #name;
    AUSPEX_TAKE(vkDestroyDevice)
    AUSPEX_TAKE(vkGetDeviceQueue)
    AUSPEX_TAKE(vkDeviceWaitIdle)
    AUSPEX_TAKE(vkQueueSubmit)
    AUSPEX_TAKE(vkAllocateMemory)
    AUSPEX_TAKE(vkFreeMemory)
    AUSPEX_TAKE(vkMapMemory)
    AUSPEX_TAKE(vkUnmapMemory)
    AUSPEX_TAKE(vkFlushMappedMemoryRanges)
    AUSPEX_TAKE(vkInvalidateMappedMemoryRanges)
    AUSPEX_TAKE(vkCreateBuffer)
    AUSPEX_TAKE(vkDestroyBuffer)
    AUSPEX_TAKE(vkGetBufferMemoryRequirements)
    AUSPEX_TAKE(vkBindBufferMemory)
    AUSPEX_TAKE(vkCreateCommandPool)
    AUSPEX_TAKE(vkDestroyCommandPool)
    AUSPEX_TAKE(vkResetCommandBuffer)
    AUSPEX_TAKE(vkFreeCommandBuffers)
    AUSPEX_TAKE(vkAllocateCommandBuffers)
    AUSPEX_TAKE(vkBeginCommandBuffer)
    AUSPEX_TAKE(vkEndCommandBuffer)
    AUSPEX_TAKE(vkCmdBindPipeline)
    AUSPEX_TAKE(vkCmdBindDescriptorSets)
    AUSPEX_TAKE(vkCmdPushConstants)
    AUSPEX_TAKE(vkCmdDispatch)
    AUSPEX_TAKE(vkCmdPipelineBarrier)
    AUSPEX_TAKE(vkCmdCopyBuffer)
    AUSPEX_TAKE(vkCmdFillBuffer)
    AUSPEX_TAKE(vkCmdWriteTimestamp)
    AUSPEX_TAKE(vkCmdResetQueryPool)
    AUSPEX_TAKE(vkCreateQueryPool)
    AUSPEX_TAKE(vkDestroyQueryPool)
    AUSPEX_TAKE(vkGetQueryPoolResults)
    AUSPEX_TAKE(vkCreateDescriptorSetLayout)
    AUSPEX_TAKE(vkDestroyDescriptorSetLayout)
    AUSPEX_TAKE(vkCreatePipelineLayout)
    AUSPEX_TAKE(vkDestroyPipelineLayout)
    AUSPEX_TAKE(vkCreateDescriptorPool)
    AUSPEX_TAKE(vkDestroyDescriptorPool)
    AUSPEX_TAKE(vkResetDescriptorPool)
    AUSPEX_TAKE(vkAllocateDescriptorSets)
    AUSPEX_TAKE(vkUpdateDescriptorSets)
    AUSPEX_TAKE(vkCreateShaderModule)
    AUSPEX_TAKE(vkDestroyShaderModule)
    AUSPEX_TAKE(vkCreateComputePipelines)
    AUSPEX_TAKE(vkDestroyPipeline)
    AUSPEX_TAKE(vkCreatePipelineCache)
    AUSPEX_TAKE(vkDestroyPipelineCache)
    AUSPEX_TAKE(vkGetPipelineCacheData)
    AUSPEX_TAKE(vkCreateSemaphore)
    AUSPEX_TAKE(vkDestroySemaphore)
    if (!take_promoted(*gpu, "vkGetBufferDeviceAddress", &d.vkGetBufferDeviceAddress)) gpu->traits.addresses = false;
    if (gpu->traits.timeline) {
        if (!take_promoted(*gpu, "vkWaitSemaphores", &d.vkWaitSemaphores)) missing = "vkWaitSemaphores";
        if (!take_promoted(*gpu, "vkGetSemaphoreCounterValue", &d.vkGetSemaphoreCounterValue))
            missing = "vkGetSemaphoreCounterValue";
    } else {
        AUSPEX_TAKE(vkCreateFence)
        AUSPEX_TAKE(vkDestroyFence)
        AUSPEX_TAKE(vkResetFences)
        AUSPEX_TAKE(vkGetFenceStatus)
        AUSPEX_TAKE(vkWaitForFences)
    }
    // Not used. Where a borrowed instance was made for 1.0, drivers give no function of 1.1, and none may be called.
    AUSPEX_TAKE(vkTrimCommandPool)
#undef AUSPEX_TAKE
    if (missing)
        return fail(
            Code::no_device, "the Vulkan device has no ", missing, ": version 1.1 is needed",
            gpu->traits.borrowed ? ", and the instance must be made for it (VkApplicationInfo::apiVersion)." : ".");
    return {};
}

// ----------------------------------------------------------------------------------- the instance

VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                                          const VkDebugUtilsMessengerCallbackDataEXT* data, void* user) {
    Messages* messages = static_cast<Messages*>(user);
    std::lock_guard<std::mutex> hold(messages->lock);
    messages->texts.emplace_back(data && data->pMessage ? data->pMessage : "(no text)");
    return VK_FALSE;
}

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";

Status create_instance(Gpu* gpu, const OpenDetail& detail) {
    InstanceTable& t = gpu->vki;
    take_instance(t, VK_NULL_HANDLE, "vkEnumerateInstanceVersion", &t.vkEnumerateInstanceVersion);
    if (!take_instance(t, VK_NULL_HANDLE, "vkCreateInstance", &t.vkCreateInstance) ||
        !take_instance(t, VK_NULL_HANDLE, "vkEnumerateInstanceExtensionProperties",
                       &t.vkEnumerateInstanceExtensionProperties) ||
        !take_instance(t, VK_NULL_HANDLE, "vkEnumerateInstanceLayerProperties", &t.vkEnumerateInstanceLayerProperties))
        return fail(Code::no_device, "the Vulkan loader gives no vkCreateInstance: it is damaged.");
    if (detail.edit_instance) detail.edit_instance(&t);
    uint32_t version = VK_API_VERSION_1_0;
    if (t.vkEnumerateInstanceVersion) (void)t.vkEnumerateInstanceVersion(&version);
    if (version < VK_API_VERSION_1_1)
        return fail(Code::no_device, "the Vulkan loader has version ", version_text(version),
                    ", at least 1.1 is needed: update the graphics driver.");

    const auto present = enumerate<VkExtensionProperties>(
        [&](uint32_t* n, VkExtensionProperties* p) { return t.vkEnumerateInstanceExtensionProperties(nullptr, n, p); });
    std::vector<const char*> extensions, layers;
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    if (has_extension(present, "VK_KHR_portability_enumeration")) {  // without it MoltenVK stays hidden
        extensions.push_back("VK_KHR_portability_enumeration");
        info.flags |= 1u;  // VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
    }
    VkDebugUtilsMessengerCreateInfoEXT listen{};
    VkValidationFeaturesEXT validation{};
    const VkValidationFeatureEnableEXT enables[] = {VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    if (detail.validation) {
        const auto found = enumerate<VkLayerProperties>(
            [&](uint32_t* n, VkLayerProperties* p) { return t.vkEnumerateInstanceLayerProperties(n, p); });
        bool there = false;
        for (const VkLayerProperties& l : found) there = there || std::strcmp(l.layerName, kValidationLayer) == 0;
        if (!there)
            return fail(Code::not_found, "validation was asked for, and ", kValidationLayer,
                        " is not installed: install the Vulkan validation layers.");
        layers.push_back(kValidationLayer);
        extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
        extensions.push_back(VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME);
        gpu->messages = std::make_shared<Messages>();
        listen.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT;
        listen.messageSeverity =
            VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
        listen.messageType =
            VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
        listen.pfnUserCallback = on_message;
        listen.pUserData = gpu->messages.get();
        validation.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT;
        validation.pNext = &listen;  // also hears creation and destruction of the instance itself
        validation.enabledValidationFeatureCount = 1;
        validation.pEnabledValidationFeatures = enables;
        info.pNext = &validation;
    }
    VkApplicationInfo app{};
    app.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    app.pEngineName = "auspex";
    app.apiVersion = VK_API_VERSION_1_3;  // the newest this code knows; devices of 1.1 are fine
    info.pApplicationInfo = &app;
    info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    info.ppEnabledExtensionNames = extensions.data();
    info.enabledLayerCount = static_cast<uint32_t>(layers.size());
    info.ppEnabledLayerNames = layers.data();
    const VkResult r = t.vkCreateInstance(&info, nullptr, &gpu->instance);
    if (r != VK_SUCCESS) {
        gpu->instance = VK_NULL_HANDLE;
        Status s = gpu->check(r, "vkCreateInstance", "is a Vulkan driver installed?");
        if (r == VK_ERROR_INCOMPATIBLE_DRIVER || r == VK_ERROR_INITIALIZATION_FAILED) s.code = Code::no_device;
        return s;
    }
    gpu->owns_instance = true;
    if (!detail.loader) keep_drivers_loaded();
    AUSPEX_TRY(load_instance_functions(gpu, gpu->instance));
    if (detail.edit_instance) detail.edit_instance(&t);
    if (detail.validation && t.vkCreateDebugUtilsMessengerEXT)
        AUSPEX_TRY(gpu->made(t.vkCreateDebugUtilsMessengerEXT(gpu->instance, &listen, nullptr, &gpu->messenger),
                             &gpu->messenger, "vkCreateDebugUtilsMessengerEXT"));
    return {};
}

// ------------------------------------------------------------------------------------- the device

/// One line about a device, for messages that list what was found.
std::string line(uint32_t index, const VkPhysicalDeviceProperties& p) {
    DeviceTraits t;
    t.type = p.deviceType;
    return say(index, ": ", p.deviceName, " (", t.type_name(), ", Vulkan ", version_text(p.apiVersion), ")");
}

VkPhysicalDeviceProperties properties_of(const Gpu& gpu, VkPhysicalDevice physical, void* chain = nullptr) {
    VkPhysicalDeviceProperties2 p{};
    p.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    p.pNext = chain;
    gpu.vki.vkGetPhysicalDeviceProperties2(physical, &p);
    return p.properties;
}

/// Why no device with these properties can be used; empty: it may be.
std::string why_not(const VkPhysicalDeviceProperties& p) {
    if (p.apiVersion < kApiVersion) return "it has no Vulkan 1.1";
    if (p.limits.maxPerStageDescriptorStorageBuffers < kMaxBindings)
        return say("it has ", p.limits.maxPerStageDescriptorStorageBuffers, " storage buffers a kernel, ", kMaxBindings,
                   " are needed");
    if (p.limits.maxPushConstantsSize < kPushBytes)
        return say("it has ", p.limits.maxPushConstantsSize, " bytes of push constants, ", kPushBytes, " are needed");
    return {};
}

int compute_family(const Gpu& gpu, VkPhysicalDevice physical, int wanted, uint32_t* timestamp_bits) {
    uint32_t n = 0;
    gpu.vki.vkGetPhysicalDeviceQueueFamilyProperties(physical, &n, nullptr);
    std::vector<VkQueueFamilyProperties> all(n);
    gpu.vki.vkGetPhysicalDeviceQueueFamilyProperties(physical, &n, all.data());
    const bool nvidia = properties_of(gpu, physical).vendorID == kNvidia;
    int best = -1;
    for (uint32_t i = 0; i < n; ++i) {
        if (!(all[i].queueFlags & VK_QUEUE_COMPUTE_BIT) || all[i].queueCount == 0) continue;
        if (wanted >= 0 && wanted != static_cast<int>(i)) continue;
        // The graphics queue is faster on some AMD parts; on an H100 (driver 580) the compute queue reads a
        // prompt of a 9B model at 12 600 rows a second, the graphics queue at 10 300.
        const bool graphics = (all[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) != 0;
        const bool better = best >= 0 &&
                            graphics != ((all[static_cast<size_t>(best)].queueFlags & VK_QUEUE_GRAPHICS_BIT) != 0) &&
                            graphics != nvidia;
        if (best < 0 || better) best = static_cast<int>(i);
    }
    if (best >= 0) *timestamp_bits = all[static_cast<size_t>(best)].timestampValidBits;
    return best;
}

/// Whether the device is one of Dozen, Vulkan over Direct3D 12. Microsoft's compatibility pack lists it for every card,
/// often before the card's own driver.
bool is_dozen(const Gpu& gpu, VkPhysicalDevice physical, const VkPhysicalDeviceProperties& p) {
    constexpr auto kDozen = static_cast<VkDriverId>(23);  // newer than the oldest Vulkan headers
    if (p.apiVersion < VK_API_VERSION_1_2) {
        const auto present = enumerate<VkExtensionProperties>([&](uint32_t* n, VkExtensionProperties* e) {
            return gpu.vki.vkEnumerateDeviceExtensionProperties(physical, nullptr, n, e);
        });
        if (!has_extension(present, "VK_KHR_driver_properties")) return false;
    }
    VkPhysicalDeviceDriverProperties driver{};
    driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    (void)properties_of(gpu, physical, &driver);
    return driver.driverID == kDozen;
}

/// By the kind of device. Below each GPU's own driver, and above software, comes Dozen.
int rank(VkPhysicalDeviceType type, bool dozen) {
    const int native = dozen ? 0 : 4;
    switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return native + 4;
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return native + 3;
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return native + 2;
        case VK_PHYSICAL_DEVICE_TYPE_CPU: return 0;
        default: return native + 1;
    }
}

Result<std::vector<VkPhysicalDevice>> all_physical(Gpu* gpu) {
    const auto all = enumerate<VkPhysicalDevice>(
        [&](uint32_t* n, VkPhysicalDevice* p) { return gpu->vki.vkEnumeratePhysicalDevices(gpu->instance, n, p); });
    if (all.empty())
        return fail(Code::no_device,
                    "the Vulkan loader knows no device: install the GPU's Vulkan driver, or use the CPU.");
    return all;
}

Status choose_physical(Gpu* gpu, const DeviceOptions& options, const OpenDetail& detail, Choice* choice) {
    std::vector<VkPhysicalDevice> all;
    AUSPEX_TRY(all_physical(gpu).get(all));
    std::string found;
    int best = -1, best_rank = -1, n_usable = 0;
    uint32_t bits = 0, best_bits = 0;
    int best_family = -1;
    bool best_is_dozen = false;
    std::vector<std::string> dozens;  // that could be used
    for (uint32_t i = 0; i < all.size(); ++i) {
        const VkPhysicalDeviceProperties p = properties_of(*gpu, all[i]);
        const std::string text = line(i, p);
        found += say(found.empty() ? "" : "; ", text);
        const bool asked = options.vulkan_index == static_cast<int>(i);
        if (options.vulkan_index >= 0 && !asked) continue;
        const bool software = p.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
        std::string why;
        const int family = compute_family(*gpu, all[i], detail.queue_family, &bits);
        if (const std::string lacks = why_not(p); !lacks.empty())
            why = lacks;
        else if (family < 0)
            why = "it has no compute queue";
        else if (software && options.kind == Kind::best && !asked && !detail.allow_software)
            why = "it is software and slower than the CPU back end; it is used where Vulkan is asked for";
        else if (i < choice->refused.size())
            why = choice->refused[i];
        if (!why.empty()) {
            gpu->notes.push_back(say("passed over ", text, ": ", why));
            if (asked) return fail(Code::no_device, "Vulkan device ", text, " cannot be used: ", why, ".");
            continue;
        }
        ++n_usable;
        const bool dozen = is_dozen(*gpu, all[i], p);
        if (dozen) dozens.push_back(text);
        if (const int value = rank(p.deviceType, dozen); value > best_rank) {
            choice->name = text;
            best = static_cast<int>(i);
            best_rank = value;
            best_is_dozen = dozen;
            best_family = family;
            best_bits = bits;
        }
    }
    if (options.vulkan_index >= static_cast<int>(all.size()))
        return fail(Code::bad_argument, "there is no Vulkan device ", options.vulkan_index,
                    ", counted from 0; the devices are ", found, ". In C, gpu counts from 1: it is ",
                    int64_t{options.vulkan_index} + 1, ".");
    if (best < 0) {
        std::string why;
        for (const std::string& n : gpu->notes) why += say(" ", n, ".");
        return fail(Code::no_device, "none of the Vulkan devices can be used.", why);
    }
    if (best_is_dozen) dozens.clear();
    for (const std::string& text : dozens)
        gpu->notes.push_back(
            say("passed over ", text,
                ": it is Dozen, Vulkan over Direct3D 12, which is used where no GPU has a driver of its "
                "own, or by its index"));
    choice->index = best;
    choice->more = n_usable > 1;
    gpu->physical = all[static_cast<size_t>(best)];
    gpu->traits.queue_family = static_cast<uint32_t>(best_family);
    gpu->traits.timestamp_bits = best_bits;
    return {};
}

Status create_layouts(Gpu* gpu) {
    VkDescriptorSetLayoutBinding bindings[kMaxBindings] = {};
    for (uint32_t i = 0; i < kMaxBindings; ++i) {
        bindings[i].binding = i;
        bindings[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        bindings[i].descriptorCount = 1;
        bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    VkDescriptorSetLayoutCreateInfo set{};
    set.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
    set.bindingCount = kMaxBindings;
    set.pBindings = bindings;
    AUSPEX_TRY(gpu->made(gpu->vk.vkCreateDescriptorSetLayout(gpu->device, &set, nullptr, &gpu->set_layout),
                         &gpu->set_layout, "vkCreateDescriptorSetLayout"));
    VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, gpu->traits.addresses ? kPushAllBytes : kPushBytes};
    VkPipelineLayoutCreateInfo layout{};
    layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    layout.setLayoutCount = 1;
    layout.pSetLayouts = &gpu->set_layout;
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &push;
    return gpu->made(gpu->vk.vkCreatePipelineLayout(gpu->device, &layout, nullptr, &gpu->pipeline_layout),
                     &gpu->pipeline_layout, "vkCreatePipelineLayout");
}

Status borrow_device(Gpu* gpu, const VulkanHandles& h) {
    if (!h.instance || !h.physical_device || !h.device || !h.queue || !h.get_instance_proc_addr)
        return fail(Code::bad_argument,
                    "VulkanHandles has a null member: instance, physical_device, device, queue and "
                    "get_instance_proc_addr are all needed.");
    gpu->vki.vkGetInstanceProcAddr = reinterpret_cast<PFN_vkGetInstanceProcAddr>(h.get_instance_proc_addr);
    gpu->instance = static_cast<VkInstance>(h.instance);
    gpu->physical = static_cast<VkPhysicalDevice>(h.physical_device);
    gpu->device = static_cast<VkDevice>(h.device);
    gpu->queue = static_cast<VkQueue>(h.queue);
    gpu->host_lock = h.lock_queue;
    gpu->host_unlock = h.unlock_queue;
    AUSPEX_TRY(load_instance_functions(gpu, gpu->instance));
    const VkPhysicalDeviceProperties p = properties_of(*gpu, gpu->physical);
    if (const std::string why = why_not(p); !why.empty())
        return fail(Code::no_device, "the borrowed device ", p.deviceName, " cannot be used: ", why,
                    "; lend another, or leave DeviceOptions::borrow out.");
    if (compute_family(*gpu, gpu->physical, static_cast<int>(h.queue_family), &gpu->traits.timestamp_bits) < 0)
        return fail(Code::bad_argument, "queue family ", h.queue_family,
                    " of the borrowed device has no compute; lend a queue of a family with VK_QUEUE_COMPUTE_BIT.");
    gpu->traits.queue_family = h.queue_family;
    return {};
}

}  // namespace device_impl

AUSPEX_SMALL_CODE_END

// --------------------------------------------------------------------------------- what is public

const char* result_name(VkResult result) {
    switch (static_cast<int>(result)) {
        case VK_SUCCESS: return "VK_SUCCESS";
        case VK_NOT_READY: return "VK_NOT_READY";
        case VK_TIMEOUT: return "VK_TIMEOUT";
        case VK_INCOMPLETE: return "VK_INCOMPLETE";
        case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
        case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
        case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
        case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
        case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
        case VK_ERROR_LAYER_NOT_PRESENT: return "VK_ERROR_LAYER_NOT_PRESENT";
        case VK_ERROR_EXTENSION_NOT_PRESENT: return "VK_ERROR_EXTENSION_NOT_PRESENT";
        case VK_ERROR_FEATURE_NOT_PRESENT: return "VK_ERROR_FEATURE_NOT_PRESENT";
        case VK_ERROR_INCOMPATIBLE_DRIVER: return "VK_ERROR_INCOMPATIBLE_DRIVER";
        case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
        case VK_ERROR_FRAGMENTED_POOL: return "VK_ERROR_FRAGMENTED_POOL";
        case VK_ERROR_OUT_OF_POOL_MEMORY: return "VK_ERROR_OUT_OF_POOL_MEMORY";
        case VK_ERROR_INVALID_SHADER_NV: return "VK_ERROR_INVALID_SHADER_NV";
        case VK_ERROR_UNKNOWN: return "VK_ERROR_UNKNOWN";
        default: return "an unlisted VkResult";
    }
}

Status Gpu::check(VkResult result, const char* function, const char* doing) {
    Code code = Code::unsupported;
    const char* hint = "";
    switch (result) {
        case VK_SUCCESS: return {};
        case VK_ERROR_OUT_OF_HOST_MEMORY:
        case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        case VK_ERROR_MEMORY_MAP_FAILED:
        case VK_ERROR_TOO_MANY_OBJECTS:
        case VK_ERROR_FRAGMENTED_POOL:
        case VK_ERROR_OUT_OF_POOL_MEMORY:
            code = Code::out_of_memory;
            hint = " Free memory on the device, or take a smaller model or context.";
            break;
        case VK_ERROR_DEVICE_LOST:
            code = Code::device_lost;
            hint = " Open the device again.";
            lost.store(true);
            break;
        case VK_ERROR_LAYER_NOT_PRESENT: code = Code::not_found; break;
        case VK_ERROR_INCOMPATIBLE_DRIVER: code = Code::no_device; break;
        default: break;
    }
    return fail(code, function, " returned ", result_name(result), " (", static_cast<int>(result), ")",
                *doing ? ": " : ".", doing, hint);
}

AUSPEX_SMALL_CODE_BEGIN

std::string Gpu::report() const {
    std::string s = describe(traits);
    for (const std::string& n : notes) s += say("note        ", n, "\n");
    return s;
}

Gpu::~Gpu() {
    if (stalled) return;  // the driver would wait for what still runs
    if (device && vk.vkDestroyPipelineLayout) {
        if (pipeline_layout) vk.vkDestroyPipelineLayout(device, pipeline_layout, nullptr);
        if (set_layout) vk.vkDestroyDescriptorSetLayout(device, set_layout, nullptr);
    }
    if (device && owns_device) {
        PFN_vkDestroyDevice destroy = vk.vkDestroyDevice;
        if (!destroy) device_impl::take_device(vki, device, "vkDestroyDevice", &destroy);
        if (vk.vkDeviceWaitIdle) (void)vk.vkDeviceWaitIdle(device);
        if (destroy) destroy(device, nullptr);
    }
    if (messenger) vki.vkDestroyDebugUtilsMessengerEXT(instance, messenger, nullptr);
    if (instance && owns_instance) {
        PFN_vkDestroyInstance destroy = vki.vkDestroyInstance;
        if (!destroy) take_instance(vki, instance, "vkDestroyInstance", &destroy);
        if (destroy) destroy(instance, nullptr);
    }
}

Result<GpuRef> open_gpu(const DeviceOptions& options, const OpenDetail& detail, Choice* choice) {
    namespace impl = device_impl;
    Choice any;
    GpuRef gpu = std::make_shared<Gpu>();
    gpu->memory_limit_bytes = options.memory_limit_bytes;
    std::vector<const char*> extensions;
    const auto look = [&] {
        probe(gpu.get(), options.borrow, &extensions);
        for (const std::string& reason : apply_quirks(detail.quirks, &gpu->traits)) gpu->notes.push_back(reason);
        if (detail.edit_traits) detail.edit_traits(&gpu->traits);
        if (options.barriers_only) gpu->traits.starts_in_order = false;
        gpu->timeout_ns = detail.timeout_ns;
        if (gpu->timeout_ns == 0) gpu->timeout_ns = (gpu->traits.is_cpu() ? 600 : 60) * uint64_t{1000000000};
    };
    if (options.borrow) {
        AUSPEX_TRY(impl::borrow_device(gpu.get(), *options.borrow));
        look();
    } else {
        AUSPEX_TRY(load_library(gpu.get(), detail));
        AUSPEX_TRY(impl::create_instance(gpu.get(), detail));
        AUSPEX_TRY(impl::choose_physical(gpu.get(), options, detail, choice ? choice : &any));
        look();
        VkResult r = create_device(gpu.get(), extensions);
        if (r == VK_ERROR_FEATURE_NOT_PRESENT || r == VK_ERROR_EXTENSION_NOT_PRESENT ||
            r == VK_ERROR_INITIALIZATION_FAILED) {
            // Some drivers report features that device creation then refuses: go on with none of them.
            gpu->notes.push_back(
                say("vkCreateDevice returned ", result_name(r), " with the reported features; optional ones are off"));
            drop_optional(&gpu->traits);
            std::vector<const char*> few;
            for (const char* e : extensions)
                if (std::strcmp(e, "VK_KHR_portability_subset") == 0) few.push_back(e);
            r = create_device(gpu.get(), few);
        }
        if (r != VK_SUCCESS) {
            Status s = gpu->check(r, "vkCreateDevice", gpu->traits.name.c_str());
            if (s.code != Code::out_of_memory) s.code = Code::no_device;
            return s;
        }
        gpu->owns_device = true;
    }
    AUSPEX_TRY(impl::load_device_functions(gpu.get()));
    if (detail.edit_device) detail.edit_device(&gpu->vk);
    if (!options.borrow) gpu->vk.vkGetDeviceQueue(gpu->device, gpu->traits.queue_family, 0, &gpu->queue);
    AUSPEX_TRY(choose_memory(gpu.get(), detail.direct_upload));
    AUSPEX_TRY(impl::create_layouts(gpu.get()));
    return gpu;
}

Result<std::vector<std::string>> gpu_names(const OpenDetail& detail) {
    const GpuRef gpu = std::make_shared<Gpu>();
    AUSPEX_TRY(load_library(gpu.get(), detail));
    AUSPEX_TRY(device_impl::create_instance(gpu.get(), detail));
    std::vector<VkPhysicalDevice> all;
    AUSPEX_TRY(device_impl::all_physical(gpu.get()).get(all));
    std::vector<std::string> names;
    for (const VkPhysicalDevice physical : all)
        names.emplace_back(device_impl::properties_of(*gpu, physical).deviceName);
    return names;
}

AUSPEX_SMALL_CODE_END

uint64_t Gpu::budget_bytes() {
    uint64_t left = UINT64_MAX;
    if (memory_limit_bytes != 0) {
        const uint64_t used = device_bytes.load();
        left = memory_limit_bytes > used ? memory_limit_bytes - used : 0;
    }
    if (traits.is_cpu()) return left;  // a software device reports a figure, not a limit
    uint64_t room = heap_room(traits.type_device);
    if (traits.spills()) {
        const uint64_t other = heap_room(traits.type_upload);
        room += std::min(other, UINT64_MAX - room);
    }
    return std::min(left, room);
}

uint64_t Gpu::heap_room(uint32_t type) {
    const uint32_t heap = traits.memory.memoryTypes[type].heapIndex;
    const uint64_t heap_bytes = traits.memory.memoryHeaps[heap].size;
    if (traits.memory_budget) {
        VkPhysicalDeviceMemoryBudgetPropertiesEXT b{};
        b.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
        VkPhysicalDeviceMemoryProperties2 m{};
        m.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
        m.pNext = &b;
        vki.vkGetPhysicalDeviceMemoryProperties2(physical, &m);
        // Drivers have told more than the heap (Intel's, RADV), or 0, which says nothing.
        const uint64_t budget = std::min(b.heapBudget[heap], heap_bytes);
        if (budget != 0) return budget > b.heapUsage[heap] ? budget - b.heapUsage[heap] : 0;
    }
    if (traits.uma) return UINT64_MAX;
    const uint64_t limit = heap_bytes / 5 * 4, used = device_bytes.load();
    return limit > used ? limit - used : 0;
}

Status lost_before() { return Status(Code::device_lost, "the Vulkan device was lost before. Open the device again."); }

Status Gpu::submit(Span<const VkCommandBuffer> buffers, VkSemaphore timeline, uint64_t value, VkFence fence) {
    if (lost.load()) return lost_before();
    VkTimelineSemaphoreSubmitInfo values{};
    values.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    values.signalSemaphoreValueCount = 1;
    values.pSignalSemaphoreValues = &value;
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.commandBufferCount = static_cast<uint32_t>(buffers.size());
    info.pCommandBuffers = buffers.data();
    if (timeline) {
        info.pNext = &values;
        info.signalSemaphoreCount = 1;
        info.pSignalSemaphores = &timeline;
    }
    std::lock_guard<std::mutex> hold(queue_lock);
    if (host_lock) host_lock();
    const VkResult r = vk.vkQueueSubmit(queue, 1, &info, fence);
    if (host_unlock) host_unlock();
    return check(r, "vkQueueSubmit");
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
