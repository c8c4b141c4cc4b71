// Drivers that offer less than the one at hand, or call themselves another kind of device: a model runs on each with
// the same text, or the device is refused with the reason. The queries are edited; what the library then asks for is
// not.
#include "driver_shim.h"

#ifndef AUSPEX_NO_VULKAN
#include <algorithm>
#include <cstdio>
#include <map>

#include "../src/engine/model.h"
#include "../src/machine/vulkan/tune_attend.h"
#include "session_rig.h"
#include "vulkan_model.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

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

constexpr const char* kOf12 =
    "VK_KHR_8bit_storage VK_KHR_shader_float16_int8 VK_KHR_timeline_semaphore VK_KHR_driver_properties "
    "VK_KHR_shader_integer_dot_product VK_EXT_subgroup_size_control";
using Properties = VkPhysicalDeviceProperties;
using Subgroups = VkPhysicalDeviceSubgroupProperties;

const Shape kShapes[] = {
    {"no shuffle", nullptr, nullptr, 0,
     [](Subgroups& p) { p.supportedOperations &= ~VkSubgroupFeatureFlags(VK_SUBGROUP_FEATURE_SHUFFLE_BIT); }, 0,
     nullptr, 0, false},
    {"128 invocations", "workgroups of at most 128, expected 256",
     [](Properties& p) { p.limits.maxComputeWorkGroupInvocations = p.limits.maxComputeWorkGroupSize[0] = 128; }},
    {"128 invocations in x", "at most 128", [](Properties& p) { p.limits.maxComputeWorkGroupSize[0] = 128; }},
    {"4 storage buffers a kernel", "4 storage buffers a kernel, 12 are needed",
     [](Properties& p) { p.limits.maxPerStageDescriptorStorageBuffers = 4; }},
    {"Vulkan 1.0", "it has no Vulkan 1.1", [](Properties& p) { p.apiVersion = VK_API_VERSION_1_0; }},
    {"Vulkan 1.1", nullptr, nullptr, 0, nullptr, VK_API_VERSION_1_1, kOf12, 0, false},
    {"Vulkan 1.1 without extensions", nullptr, nullptr, 0, nullptr, VK_API_VERSION_1_1, ""},
    {"no timeline semaphore", nullptr, nullptr, kTimeline, nullptr, 0, nullptr, 0, false},
    {"a discrete GPU", nullptr, [](Properties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU; }, 0, nullptr,
     0, nullptr, 0, false},
    {"limits at the ends of their types", nullptr,
     [](Properties& p) {  // Mesa 25 has no bound for workgroups along x
         for (uint32_t& n : p.limits.maxComputeWorkGroupCount) n = UINT32_MAX;
         p.limits.maxStorageBufferRange = p.limits.maxPushConstantsSize = UINT32_MAX;
         p.limits.maxMemoryAllocationCount = p.limits.maxPerStageDescriptorStorageBuffers = UINT32_MAX;
     },
     0, nullptr, 0, nullptr, UINT64_MAX, false},
    {"no subgroup operations in compute", nullptr, nullptr, 0,
     [](Subgroups& p) { p.supportedStages = VK_SHADER_STAGE_FRAGMENT_BIT; }},
    {"subgroups of 4", nullptr, nullptr, 0, [](Subgroups& p) { p.subgroupSize = 4; }},
    {"no 8-bit storage", nullptr, nullptr, kStorage8},
    {"shared memory of 16 KiB", nullptr, [](Properties& p) { p.limits.maxComputeSharedMemorySize = 16384; }},
    {"no device address", nullptr, nullptr, kAddresses},
    {"an integrated GPU", nullptr, [](Properties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU; }},
    {"no 16-bit storage", nullptr, nullptr, kStorage16},
    {"ranges of 128 MiB", nullptr, [](Properties& p) { p.limits.maxStorageBufferRange = 128u << 20; }},
    {"ranges of 512 KiB", nullptr, [](Properties& p) { p.limits.maxStorageBufferRange = 512u << 10; }},
    {"256 invocations", nullptr,
     [](Properties& p) { p.limits.maxComputeWorkGroupInvocations = p.limits.maxComputeWorkGroupSize[0] = 256; }},
    {"128 bytes of push constants", nullptr, [](Properties& p) { p.limits.maxPushConstantsSize = 128; }},
    {"offsets in multiples of 256 bytes", nullptr,
     [](Properties& p) { p.limits.minStorageBufferOffsetAlignment = p.limits.nonCoherentAtomSize = 256; }},
    {"no small integers and halves", nullptr, nullptr, kSmallTypes},
    {"Vulkan 1.2 without extensions", nullptr, nullptr, 0, nullptr, VK_API_VERSION_1_2, ""},
    {"allocations of 4 MiB, no timestamps", nullptr, [](Properties& p) { p.limits.timestampPeriod = 0; }, 0, nullptr, 0,
     nullptr, 4u << 20},
};

const Shape kAsItIs{"as it is"};
const Shape* shape = nullptr;  ///< of the device that is opened next
PFN_vkGetPhysicalDeviceProperties2 real_properties = nullptr;
PFN_vkGetPhysicalDeviceFeatures2 real_features = nullptr;
PFN_vkEnumerateDeviceExtensionProperties real_extensions = nullptr;

PFN_vkCreateInstance real_create_instance = nullptr;

/// A memory that the driver cuts into two heaps: type and heap 0 are local to the device, 1 is the host's. Both are of
/// one real type, which the host sees.
struct TwoHeaps {
    uint64_t size[2] = {};  ///< bytes; of no use where [0] is 0
    bool visible = false;   ///< the host sees heap 0 too
    bool budget = false;    ///< there is VK_EXT_memory_budget
    bool coherent = true;   ///< false: host and device see what the other wrote to heap 1 when it is flushed alone
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
TwoHeaps heaps;

/// The struct in a chain.
template <class T>
T& as(VkBaseOutStructure* s) {
    return *reinterpret_cast<T*>(s);
}
/// What a driver of Vulkan 1.1 knows nothing of is not asked.
void check_chain(const VkBaseOutStructure* s) {
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES);
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES);
    CHECK(s->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
}
void VKAPI_PTR shaped_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2* p) {
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
void VKAPI_PTR shaped_features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* f) {
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
VkResult VKAPI_PTR shaped_extensions(VkPhysicalDevice device, const char* layer, uint32_t* n,
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
VkResult VKAPI_PTR shaped_instance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks* a, VkInstance* out) {
    VkApplicationInfo app = *info->pApplicationInfo;
    VkInstanceCreateInfo with = *info;
    if (shape->version) app.apiVersion = shape->version;
    with.pApplicationInfo = &app;
    return real_create_instance(&with, a, out);
}

PFN_vkGetPhysicalDeviceMemoryProperties2 real_memory = nullptr;
PFN_vkGetBufferMemoryRequirements real_requirements = nullptr;
PFN_vkAllocateMemory real_allocate = nullptr;
PFN_vkFreeMemory real_free = nullptr;

void VKAPI_PTR cut_memory(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2* m) {
    real_memory(device, m);
    VkPhysicalDeviceMemoryProperties& p = m->memoryProperties;
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (heaps.real_type = 0; (p.memoryTypes[heaps.real_type].propertyFlags & host) != host;) ++heaps.real_type;
    p.memoryTypeCount = p.memoryHeapCount = 2;
    p.memoryTypes[0] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | (heaps.visible ? host : 0), 0};
    p.memoryTypes[1] = {host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1};
    if (!heaps.coherent) p.memoryTypes[1].propertyFlags &= ~VkMemoryPropertyFlags(VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    p.memoryHeaps[0] = {heaps.size[0], VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    p.memoryHeaps[1] = {heaps.size[1], 0};
    for (auto* s = static_cast<VkBaseOutStructure*>(m->pNext); s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
            for (int h = 0; h < 2; ++h) {
                as<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(s).heapBudget[h] = heaps.size[h];
                as<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(s).heapUsage[h] = heaps.used[h];
            }
}
void VKAPI_PTR cut_requirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements* need) {
    real_requirements(device, buffer, need);
    need->memoryTypeBits = 3;
}
VkResult VKAPI_PTR cut_allocate(VkDevice device, const VkMemoryAllocateInfo* info, const VkAllocationCallbacks* a,
                                VkDeviceMemory* out) {
    const uint32_t heap = info->memoryTypeIndex;
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
void VKAPI_PTR cut_free(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks* a) {
    const auto at = heaps.placed.find(memory);
    if (at != heaps.placed.end()) {
        heaps.used[at->second.first] -= at->second.second;
        heaps.placed.erase(at);
    }
    heaps.views.erase(memory);
    real_free(device, memory, a);
}
PFN_vkMapMemory real_map = nullptr;
VkResult VKAPI_PTR cut_map(VkDevice device, VkDeviceMemory memory, VkDeviceSize at, VkDeviceSize n, VkMemoryMapFlags f,
                           void** out) {
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
VkResult carry(uint32_t n, const VkMappedMemoryRange* ranges, bool to_device) {
    for (uint32_t i = 0; i < n; ++i) {
        TwoHeaps::View& view = heaps.views.at(ranges[i].memory);
        std::byte *host = view.host.data() + ranges[i].offset, *device = view.device + ranges[i].offset;
        REQUIRE(ranges[i].offset + ranges[i].size <= view.host.size());
        std::copy_n(to_device ? host : device, ranges[i].size, to_device ? device : host);
    }
    return VK_SUCCESS;
}
VkResult VKAPI_PTR cut_flush(VkDevice, uint32_t n, const VkMappedMemoryRange* ranges) { return carry(n, ranges, true); }
VkResult VKAPI_PTR cut_invalidate(VkDevice, uint32_t n, const VkMappedMemoryRange* ranges) {
    return carry(n, ranges, false);
}
void edit_memory(VolkDeviceTable* t) {
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

const Shape kDiscrete{"discrete", nullptr, [](Properties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU; }};

Result<vk::OpenDeviceRef> open_shape(const Shape& with, uint32_t max_submit_ms = 0,
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

Device device_on(const vk::OpenDeviceRef& opened) {
    Device device = cpu_device();
    device.impl()->machine = vk::make_backend(opened);
    return device;
}

void limit_memory(const Device& device, const vk::OpenDeviceRef& opened, uint64_t bytes) {
    opened->gpu->memory_limit_bytes = device.impl()->options.memory_limit_bytes = bytes;
}

/// The text of a prompt that takes wide and narrow steps.
Status text_on(const vk::OpenDeviceRef& opened, const std::vector<std::byte>& bytes, std::vector<Token>* text,
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

}  // namespace

TEST_CASE(
    "on a device that offers less, or is of another kind, the text is the same, or the error says what it lacks") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    std::vector<Token> want;
    REQUIRE(text_on(open_shape(kAsItIs).value(), bytes, &want).ok());
    int n_same = 0, n_refused = 0;
    for (const Shape& s : kShapes) {
        const std::string name = s.name;
        CAPTURE(name);
        if (!deep() && !s.refused && s.in_deep_only) continue;
        vk::OpenDeviceRef opened;
        const Status status = open_shape(s).get(opened);
        if (s.refused) {
            CHECK((status.code == Code::no_device || status.code == Code::unsupported));
            CHECK_MESSAGE(status.text.find(s.refused) != std::string::npos, status.message());
            ++n_refused;
        } else {
            REQUIRE_MESSAGE(status.ok(), status.message());
            const vk::DeviceTraits& traits = opened->gpu->traits;
            if (s.version == VK_API_VERSION_1_1) {
                CHECK(traits.timeline == (s.extensions == kOf12));
                CHECK(traits.dot == (s.extensions == kOf12));
            }
            std::vector<Token> text;
            const Status run = text_on(opened, bytes, &text);
            CHECK_MESSAGE(run.ok(), run.message());
            CHECK(text == want);
            ++n_same;
        }
        opened.reset();
        CHECK(n_driver_object.load() == 0);
    }
    std::printf("%d shapes of devices: %d give the same text, %d are refused by name\n", n_same + n_refused, n_same,
                n_refused);
}

TEST_CASE("without shuffles, prompts of many rows at once give the same text") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    std::vector<Token> want, text;
    REQUIRE(text_on(open_shape(kAsItIs).value(), bytes, &want, 200, 256).ok());
    const vk::OpenDeviceRef opened = open_shape(kShapes[0]).value();
    CHECK_FALSE(opened->shuffles);
    REQUIRE(text_on(opened, bytes, &text, 200, 256).ok());
    CHECK(text == want);
}

TEST_CASE("max_submit_ms cuts prompts into more submissions, and changes no text") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    const auto submissions = [&](uint32_t max_ms, std::vector<Token>* text) {
        const vk::OpenDeviceRef opened = open_shape(kAsItIs, max_ms).value();
        opened->small_bytes = 0;  // a small model is read a few rows at a time
        int64_t n = 0;
        for (DriverCall* c : DriverCall::all()) c->n_call = 0;
        REQUIRE(text_on(opened, bytes, text, 96).ok());
        for (const DriverCall* c : DriverCall::all())
            if (std::string(c->name) == "vkQueueSubmit") n = c->n_call;
        return n;
    };
    std::vector<Token> few, many;
    const int64_t n_few = submissions(60000, &few);
    const int64_t n_many = submissions(1, &many);
    if (test_vulkan_model::shared_gpu()->gpu->traits.is_cpu())
        CHECK(n_many > n_few);
    else  // may run all layers in a millisecond
        CHECK(n_many >= n_few);
    CHECK(few == many);
}

TEST_CASE("where the driver cuts the one memory into two heaps, a model that is larger than the first runs in both") {
    if (!gpu_device()) return;
    constexpr uint64_t kLocalBytes = 4 << 20;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    std::vector<Token> want;
    REQUIRE(text_on(open_shape(kAsItIs).value(), bytes, &want).ok());
    const Shape integrated{"integrated", nullptr,
                           [](Properties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU; }};
    for (const bool tells_budget : {true, false})
        for (const bool visible : {true, false}) {
            CAPTURE(tells_budget);
            CAPTURE(visible);
            heaps = TwoHeaps();
            heaps.size[0] = kLocalBytes;
            heaps.size[1] = uint64_t{1} << 30;
            heaps.visible = visible;
            heaps.budget = tells_budget;
            std::vector<Token> text;
            {
                const vk::OpenDeviceRef opened = open_shape(integrated).value();
                CHECK(opened->gpu->traits.memory_budget == tells_budget);
                CHECK(opened->gpu->budget_bytes() > kLocalBytes);
                const Status run = text_on(opened, bytes, &text);
                CHECK_MESSAGE(run.ok(), run.message());
            }
            CHECK(text == want);
            CHECK(heaps.peak[0] > 0);
            CHECK(heaps.peak[1] > kLocalBytes);
            CHECK(heaps.placed.empty());
        }
    std::vector<Token> text;
    const Status run = text_on(open_shape(kDiscrete).value(), bytes, &text);
    CHECK(run.code == Code::out_of_memory);
    CHECK_MESSAGE(run.text.find("MiB left") != std::string::npos, run.message());
    heaps = TwoHeaps();
}

TEST_CASE("where the memory that the host reads is not coherent, nothing of an earlier text is read again") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    std::vector<Token> texts[2];
    for (const bool coherent : {true, false}) {
        heaps = TwoHeaps();
        heaps.size[0] = heaps.size[1] = uint64_t{1} << 30;
        heaps.visible = true;
        heaps.coherent = coherent;
        Device device = device_on(open_shape(kDiscrete).value());
        Model model = load_model(device, bytes);
        SessionOptions options;
        options.n_context = 256;
        options.n_ubatch = 32;
        options.run_ahead = 2;
        options.draft.depth = 0;
        Session session = open(model, options);
        sync(session, tiny_ids(40, 4));
        more(session, 40);
        // A short text that ends while cycles are queued: these emit nothing, and their places hold the text before.
        sync(session, tiny_ids(30, 5));
        more(session, 3);
        Sampling ends;
        for (Token id = 0; id < Token(model.info().n_vocab); ++id)
            if (model.is_end(id)) ends.logit_bias.push_back({id, 1000.0f});
        REQUIRE_FALSE(ends.logit_bias.empty());
        for (int i = 0; i < 2; ++i) REQUIRE(session.next(ends).ok());
        texts[coherent].assign(session.history().begin(), session.history().end());
        CHECK(heaps.views.empty() == coherent);
    }
    heaps = TwoHeaps();
    CHECK(texts[0] == texts[1]);
}

TEST_CASE("on a GPU with memory of its own a plan counts what others hold, and drafting apart from checkpoints") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    heaps = TwoHeaps();
    heaps.size[0] = heaps.size[1] = uint64_t{1} << 30;
    {
        const vk::OpenDeviceRef opened = open_shape(kDiscrete).value();
        CHECK_FALSE(opened->gpu->traits.device_mapped);
        Device device = device_on(opened);
        const Model model = load_model(device, bytes);
        SessionOptions options;
        options.n_context = 256;
        options.n_ubatch = 32;
        options.draft.source = Draft::mtp;
        const MemoryPlan kept = Session::plan(model, options).value();
        options.checkpoint_bytes = 0;
        const MemoryPlan plan = Session::plan(model, options).value();
        CHECK(kept.session_bytes > plan.session_bytes + kept.checkpoint_bytes);  // a buffer beside them
        CHECK(kept.draft_session_bytes == plan.draft_session_bytes);
        for (const char* what : {"keys", "values"})  // named as on the CPU
            CHECK(std::any_of(plan.items.begin(), plan.items.end(),
                              [&](const MemoryItem& item) { return item.what == what && item.bytes > 0; }));
        CHECK(plan.draft_session_bytes > 0);

        // Most of such a session is in the host's memory, and the limit is for all.
        const uint64_t limit = plan.total_bytes - plan.pinned_bytes + plan.session_bytes / 2;
        limit_memory(device, opened, limit);
        const Session first = open(model, options);
        const MemoryPlan second = Session::plan(model, options).value();
        CHECK(second.limit_bytes < limit);
        CHECK_FALSE(second.fits);
        const Status create = Session::create(model, options).status();
        CHECK(create.code == Code::out_of_memory);
        CHECK_MESSAGE(create.text.find("memory_limit_bytes less what others hold is ") != std::string::npos,
                      create.message());
    }
    heaps = TwoHeaps();
}

TEST_CASE("sessions that are created at once stay within memory_limit_bytes") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    heaps = TwoHeaps();
    heaps.size[0] = heaps.size[1] = uint64_t{1} << 30;
    {
        const vk::OpenDeviceRef opened = open_shape(kAsItIs).value();
        Device device = device_on(opened);
        const Model model = load_model(device, bytes);
        SessionOptions options;
        options.n_context = 256;
        options.n_ubatch = 32;
        options.checkpoint_bytes = 0;
        const MemoryPlan plan = Session::plan(model, options).value();
        const uint64_t limit = plan.total_bytes + plan.session_bytes / 2;
        limit_memory(device, opened, limit);
        Status other;
        heaps.during_allocation = [&] { other = Session::create(model, options).status(); };
        const Status first = Session::create(model, options).status();
        CHECK_MESSAGE(first.ok(), first.message());
        CHECK(other.code == Code::out_of_memory);
        CHECK(Session::create(model, options).ok());
    }
    heaps = TwoHeaps();
}

TEST_CASE("a context that needs more than one binding or allocation is refused in the same words by plan and create") {
    if (!gpu_device()) return;
    const Shape range{"ranges of 512 KiB", nullptr, [](Properties& p) { p.limits.maxStorageBufferRange = 512u << 10; }};
    Shape allocation{"allocations of 64 MiB"};  // a GPU with memory of its own loads through 32 MiB
    allocation.max_allocation = 64u << 20;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    for (const Shape* with : {static_cast<const Shape*>(&range), static_cast<const Shape*>(&allocation)}) {
        Device device = device_on(open_shape(*with).value());
        Model model;
        REQUIRE(Model::load(device, bytes).get(model).ok());
        SessionOptions options;
        options.n_ubatch = 32;
        options.n_context = 262144;
        Session session;
        const Status create = Session::create(model, options).get(session);
        CHECK(create.code == Code::bad_argument);
        const std::string want = with == &range ? "binds at most 524288" : "allocates at most 671";
        CHECK_MESSAGE(create.text.find(want) != std::string::npos, create.message());
        CHECK(create.text.find("lower n_context or n_ubatch") != std::string::npos);
        CHECK(Session::plan(model, options).status().text == create.text);
        options.kv_k = options.kv_v = KvType::q4_0;
        options.n_context = 1024;
        CHECK(Session::create(model, options).get(session).ok());
    }
}

TEST_CASE("a model with experts is loaded where a session with default options cannot be planned") {
    if (!gpu_device()) return;
    const Shape small{"ranges of 512 KiB", nullptr, [](Properties& p) { p.limits.maxStorageBufferRange = 512u << 10; }};
    TinyOptions tiny = smallest();
    tiny.family = Family::qwen35moe;
    tiny.d_head = 256;
    const std::vector<std::byte> bytes = tiny_model(tiny);
    SessionOptions options;
    options.n_context = 256;
    options.n_ubatch = 16;
    options.checkpoint_bytes = 0;
    uint64_t weight_bytes = 0;
    for (const bool roomy : {true, false}) {
        Device device = device_on(open_shape(small).value());
        device.impl()->options.memory_limit_bytes = roomy ? size_t{1} << 30 : static_cast<size_t>(weight_bytes - 1);
        const Model model = load_model(device, bytes);
        CHECK(Session::plan(model).status().code == Code::bad_argument);
        const MemoryPlan plan = Session::plan(model, options).value();
        CHECK((plan.pinned_bytes == 0) == roomy);
        weight_bytes = plan.weight_bytes;
    }
}

TEST_CASE("where loops are short, a context that the general attention cannot see is refused by plan and create") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    const std::vector<vk::Quirk> quirks = {{"short loops", vk::kShortLoops | vk::kNoShuffle}};
    Device device = device_on(open_shape(kAsItIs, 0, quirks).value());
    const Model model = load_model(device, bytes);
    SessionOptions options;
    options.n_ubatch = 32;
    options.n_context = vk::attend_any_keys(256) + 1;
    const Status create = Session::create(model, options).status();
    CHECK(create.code == Code::unsupported);
    CHECK_MESSAGE(create.text.find("at most 49472 rows") != std::string::npos, create.message());
    CHECK(Session::plan(model, options).status().text == create.text);
    --options.n_context;
    CHECK(Session::plan(model, options).ok());
    device.impl()->machine = vk::make_backend(open_shape(kAsItIs, 0, {&quirks[0], 0}).value());
    ++options.n_context;
    CHECK(Session::plan(load_model(device, bytes), options).ok());
}

TEST_CASE("a quirk turns off what it names on the devices that it names, and the report says so") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    std::vector<Token> want, text;
    const vk::OpenDeviceRef plain = open_shape(kAsItIs).value();
    REQUIRE(text_on(plain, bytes, &want).ok());
    const vk::DeviceTraits& is = plain->gpu->traits;
    const uint32_t all = vk::kNoTimeline | vk::kNoMatrix | vk::kNoDot | vk::kNoHalf | vk::kNoSmallBuffers |
                         vk::kNoAddresses | vk::kNoShuffle | vk::kShortLoops | vk::kNoChain;
    const std::vector<vk::Quirk> here = {
        {"an invented fault", all, is.driver_id, is.vendor_id, is.device_id, is.driver_version + 1}};
    const vk::OpenDeviceRef opened = open_shape(kAsItIs, 0, here).value();
    const vk::DeviceTraits& t = opened->gpu->traits;
    CHECK_FALSE((t.timeline || t.matrix_khr || t.matrix_nv || t.dot || t.float16 || t.storage8 || t.storage16));
    CHECK_FALSE((t.addresses || t.shuffle() || t.starts_in_order));
    CHECK(t.short_loops);
    CHECK(opened->gpu->report().find("an invented fault") != std::string::npos);
    REQUIRE(text_on(opened, bytes, &text).ok());
    CHECK(text == want);

    std::vector<vk::Quirk> elsewhere(4, here[0]);
    elsewhere[0].driver_id = is.driver_id + 1;
    elsewhere[1].vendor_id = is.vendor_id + 1;
    elsewhere[2].device_id = is.device_id + 1;
    elsewhere[3].mended_in = is.driver_version;
    const vk::OpenDeviceRef other = open_shape(kAsItIs, 0, elsewhere).value();
    CHECK(other->gpu->traits.timeline == is.timeline);
    CHECK_FALSE(other->gpu->traits.short_loops);
    CHECK(other->gpu->report().find("an invented fault") == std::string::npos);
}

#endif  // AUSPEX_NO_VULKAN
