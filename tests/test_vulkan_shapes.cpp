// Drivers that offer less than the one at hand, or call themselves another kind of device: a model runs on each with
// the same text, or the device is refused with the reason. The queries are edited; what the library then asks for is
// not.
#include "driver_shim.h"

#ifndef AUSPEX_NO_VULKAN
#include <cstdio>

#include "../src/engine/model.h"
#include "vulkan_model.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

using Limits = VkPhysicalDeviceLimits;
using V11 = VkPhysicalDeviceVulkan11Properties;
using Features12 = VkPhysicalDeviceVulkan12Features;

/// What a driver answers; each may be null.
struct Shape {
    const char* name;
    const char* refused = nullptr;  ///< what the error says; null: it runs
    void (*properties)(VkPhysicalDeviceProperties&) = nullptr;
    void (*v11)(V11&) = nullptr;
    void (*features)(VkPhysicalDeviceFeatures&) = nullptr;
    void (*features11)(VkPhysicalDeviceVulkan11Features&) = nullptr;
    void (*features12)(Features12&) = nullptr;
    bool without_extensions = false;  ///< and without what Vulkan 1.3 made part of itself
};

const Shape kShapes[] = {
    {"no shuffle", nullptr, nullptr,
     [](V11& p) { p.subgroupSupportedOperations &= ~VkSubgroupFeatureFlags(VK_SUBGROUP_FEATURE_SHUFFLE_BIT); }},
    {"128 invocations", "workgroups of at most 128, expected 256",
     [](VkPhysicalDeviceProperties& p) {
         p.limits.maxComputeWorkGroupInvocations = p.limits.maxComputeWorkGroupSize[0] = 128;
     }},
    {"4 storage buffers a kernel", "4 storage buffers a kernel, 12 are needed",
     [](VkPhysicalDeviceProperties& p) { p.limits.maxPerStageDescriptorStorageBuffers = 4; }},
    {"Vulkan 1.1", "it has no Vulkan 1.2", [](VkPhysicalDeviceProperties& p) { p.apiVersion = VK_API_VERSION_1_1; }},
    {"no timeline semaphore", nullptr, nullptr, nullptr, nullptr, nullptr,
     [](Features12& f) { f.timelineSemaphore = VK_FALSE; }},
    {"a discrete GPU", nullptr,
     [](VkPhysicalDeviceProperties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU; }},
    {"no subgroup operations in compute", nullptr, nullptr,
     [](V11& p) { p.subgroupSupportedStages = VK_SHADER_STAGE_FRAGMENT_BIT; }},
    {"subgroups of 4", nullptr, nullptr, [](V11& p) { p.subgroupSize = 4; }},
    {"no 8-bit storage", nullptr, nullptr, nullptr, nullptr, nullptr,
     [](Features12& f) { f.storageBuffer8BitAccess = VK_FALSE; }},
    {"shared memory of 16 KiB", nullptr,
     [](VkPhysicalDeviceProperties& p) { p.limits.maxComputeSharedMemorySize = 16384; }},
    {"no device address", nullptr, nullptr, nullptr, nullptr, nullptr,
     [](Features12& f) { f.bufferDeviceAddress = VK_FALSE; }},
    {"an integrated GPU", nullptr,
     [](VkPhysicalDeviceProperties& p) { p.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU; }},
    {"no 16-bit storage", nullptr, nullptr, nullptr, nullptr,
     [](VkPhysicalDeviceVulkan11Features& f) { f.storageBuffer16BitAccess = VK_FALSE; }},
    {"ranges of 128 MiB", nullptr, [](VkPhysicalDeviceProperties& p) { p.limits.maxStorageBufferRange = 128u << 20; }},
    {"ranges of 512 KiB", nullptr, [](VkPhysicalDeviceProperties& p) { p.limits.maxStorageBufferRange = 512u << 10; }},
    {"256 invocations", nullptr,
     [](VkPhysicalDeviceProperties& p) {
         p.limits.maxComputeWorkGroupInvocations = p.limits.maxComputeWorkGroupSize[0] = 256;
     }},
    {"128 bytes of push constants", nullptr,
     [](VkPhysicalDeviceProperties& p) { p.limits.maxPushConstantsSize = 128; }},
    {"offsets in multiples of 256 bytes", nullptr,
     [](VkPhysicalDeviceProperties& p) {
         p.limits.minStorageBufferOffsetAlignment = p.limits.nonCoherentAtomSize = 256;
     }},
    {"no small integers and halves", nullptr, nullptr, nullptr,
     [](VkPhysicalDeviceFeatures& f) { f.shaderInt16 = f.shaderInt64 = VK_FALSE; }, nullptr,
     [](Features12& f) { f.shaderFloat16 = f.shaderInt8 = VK_FALSE; }},
    {"Vulkan 1.2 without extensions", nullptr, [](VkPhysicalDeviceProperties& p) { p.apiVersion = VK_API_VERSION_1_2; },
     nullptr, nullptr, nullptr, nullptr, true},
    {"allocations of 4 MiB, no timestamps", nullptr,
     [](VkPhysicalDeviceProperties& p) { p.limits.timestampPeriod = 0; },
     [](V11& p) { p.maxMemoryAllocationSize = 4u << 20; }},
};

const Shape kAsItIs{"as it is"};
const Shape* shape = nullptr;  ///< of the device that is opened next
PFN_vkGetPhysicalDeviceProperties2 real_properties = nullptr;
PFN_vkGetPhysicalDeviceFeatures2 real_features = nullptr;
PFN_vkEnumerateDeviceExtensionProperties real_extensions = nullptr;

template <class T>
void edit(VkBaseOutStructure* s, void (*change)(T&)) {
    if (change) change(*reinterpret_cast<T*>(s));
}
void VKAPI_PTR shaped_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2* p) {
    real_properties(device, p);
    if (shape->properties) shape->properties(p->properties);
    for (auto* s = static_cast<VkBaseOutStructure*>(p->pNext); s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES) edit(s, shape->v11);
}
void VKAPI_PTR shaped_features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* f) {
    real_features(device, f);
    if (shape->features) shape->features(f->features);
    for (auto* s = static_cast<VkBaseOutStructure*>(f->pNext); s; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES) edit(s, shape->features11);
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) edit(s, shape->features12);
    }
}
VkResult VKAPI_PTR shaped_extensions(VkPhysicalDevice device, const char* layer, uint32_t* n,
                                     VkExtensionProperties* p) {
    if (!shape->without_extensions) return real_extensions(device, layer, n, p);
    *n = 0;
    return VK_SUCCESS;
}

Result<vk::OpenDeviceRef> open_shape(const Shape& with, uint32_t max_submit_ms = 0) {
    shape = &with;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    options.max_submit_ms = max_submit_ms;
    vk::OpenDetail detail;
    shim_driver(&detail);
    detail.edit_instance = [](vk::InstanceTable* t) {
        driver_shim::edit_instance(t);
        if (!t->vkGetPhysicalDeviceProperties2 || t->vkGetPhysicalDeviceProperties2 == shaped_properties) return;
        real_properties = std::exchange(t->vkGetPhysicalDeviceProperties2, shaped_properties);
        real_features = std::exchange(t->vkGetPhysicalDeviceFeatures2, shaped_features);
        real_extensions = std::exchange(t->vkEnumerateDeviceExtensionProperties, shaped_extensions);
    };
    return vk::open_device(options, detail);
}

/// The text of a prompt that takes wide and narrow steps.
Status text_on(const vk::OpenDeviceRef& opened, const std::vector<std::byte>& bytes, std::vector<Token>* text,
               size_t n_prompt = 40, uint32_t n_ubatch = 32) {
    Device device = cpu_device();
    device.impl()->machine = vk::make_backend(opened);
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
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::tiny_of(true));
    std::vector<Token> want;
    REQUIRE(text_on(open_shape(kAsItIs).value(), bytes, &want).ok());
    int n_same = 0, n_refused = 0;
    for (const Shape& s : kShapes) {
        const std::string name = s.name;
        CAPTURE(name);
        if (!deep() && !s.refused && n_same == 3) continue;
        vk::OpenDeviceRef opened;
        const Status status = open_shape(s).get(opened);
        if (s.refused) {
            CHECK((status.code == Code::no_device || status.code == Code::unsupported));
            CHECK_MESSAGE(status.text.find(s.refused) != std::string::npos, status.message());
            ++n_refused;
        } else {
            REQUIRE_MESSAGE(status.ok(), status.message());
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
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::tiny_of(true));
    std::vector<Token> want, text;
    REQUIRE(text_on(open_shape(kAsItIs).value(), bytes, &want, 200, 256).ok());
    const vk::OpenDeviceRef opened = open_shape(kShapes[0]).value();
    CHECK_FALSE(opened->shuffles);
    REQUIRE(text_on(opened, bytes, &text, 200, 256).ok());
    CHECK(text == want);
}

TEST_CASE("max_submit_ms cuts prompts into more submissions, and changes no text") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::tiny_of(true));
    const auto submissions = [&](uint32_t max_ms, std::vector<Token>* text) {
        const vk::OpenDeviceRef opened = open_shape(kAsItIs, max_ms).value();
        int64_t n = 0;
        for (DriverCall* c : DriverCall::all()) c->n_call = 0;
        REQUIRE(text_on(opened, bytes, text, 96).ok());
        for (const DriverCall* c : DriverCall::all())
            if (std::string(c->name) == "vkQueueSubmit") n = c->n_call;
        return n;
    };
    std::vector<Token> few, many;
    const int64_t n_few = submissions(60000, &few);
    CHECK(submissions(1, &many) > n_few);
    CHECK(few == many);
}

#endif  // AUSPEX_NO_VULKAN
