// Drivers that offer less than the one at hand, or call themselves another kind of device: a model runs on each with
// the same text, or the device is refused with the reason. The queries are edited; what the library then asks for is
// not.
#include "driver_shapes.h"

#ifndef AUSPEX_NO_VULKAN
#include <cstdio>

#include "../src/machine/vulkan/tune_attend.h"

using namespace test_driver_shapes;

namespace {

constexpr const char* kOf12 =
    "VK_KHR_8bit_storage VK_KHR_shader_float16_int8 VK_KHR_timeline_semaphore VK_KHR_driver_properties "
    "VK_KHR_shader_integer_dot_product VK_EXT_subgroup_size_control";
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
    {"a discrete GPU of 1024 invocations, 512 in x", nullptr,
     [](Properties& p) {
         p.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
         p.limits.maxComputeWorkGroupInvocations = 1024;
         p.limits.maxComputeWorkGroupSize[0] = 512;
     },
     0, nullptr, 0, nullptr, 0, false},
    {"limits at the ends of their types", nullptr,
     [](Properties& p) {  // Mesa 25 has no bound for workgroups along x
         for (uint32_t& n : p.limits.maxComputeWorkGroupCount) n = UINT32_MAX;
         p.limits.maxStorageBufferRange = UINT32_MAX;
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
                const vk::OpenDeviceRef opened = open_shape(kIntegrated).value();
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

TEST_CASE("an integrated GPU uses both heaps where the first is the larger and the host sees it, as on AMD's APUs") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    std::vector<Token> want, text;
    REQUIRE(text_on(open_shape(kAsItIs).value(), bytes, &want).ok());
    heaps = TwoHeaps();
    heaps.size[0] = 32 << 20;
    heaps.size[1] = 16 << 20;
    heaps.visible = heaps.budget = true;
    {
        const vk::OpenDeviceRef opened = open_shape(kIntegrated).value();
        const vk::DeviceTraits& traits = opened->gpu->traits;
        CHECK(traits.type_device == 0);
        CHECK(traits.type_upload == 1);
        CHECK(traits.type_readback == 1);
        CHECK(opened->gpu->budget_bytes() == 48 << 20);
        CHECK(opened->gpu->report().find("upload type 1 (host visible coherent cached, heap of 16 MiB)") !=
              std::string::npos);
        const Device device = device_on(opened);
        std::vector<Model> models;  // of 6 MiB each
        while (models.size() < 7 && heaps.used[1] < 4 << 20) models.push_back(load_model(device, bytes));
        CHECK(models.size() == 6);
        CHECK(heaps.used[0] > 26 << 20);
        SessionOptions options;
        options.n_context = 256;
        options.n_ubatch = 32;
        options.checkpoint_bytes = 0;
        const MemoryPlan plan = Session::plan(models[5], options).value();
        CHECK(plan.fits);
        CHECK(plan.limit_bytes == opened->gpu->budget_bytes() + plan.weight_bytes);
        CHECK(plan.limit_bytes > 16 << 20);
        models.pop_back();
        const Status run = text_on(opened, bytes, &text);
        CHECK_MESSAGE(run.ok(), run.message());
        CHECK(text == want);
        models.clear();

        // What the host writes goes to the first heap where the second has no room.
        vk::MemoryPlan host(traits);
        host.add(vk::Arena::pinned, 24 << 20);
        vk::Memory memory;
        const Status taken = vk::Memory::take(opened->gpu, host).get(memory);
        CHECK_MESSAGE(taken.ok(), taken.message());
        CHECK(heaps.used[0] > 24 << 20);
    }
    CHECK(heaps.placed.empty());
    heaps.combined = true;
    {
        const vk::OpenDeviceRef opened = open_shape(kIntegrated).value();
        CHECK(opened->gpu->traits.type_upload == 1);
        CHECK(opened->gpu->traits.type_readback == 2);
        for (const vk::Arena arena : {vk::Arena::pinned, vk::Arena::ring}) {  // in neither heap would both have room
            vk::MemoryPlan host(opened->gpu->traits);
            host.add(arena, 12 << 20);
            vk::Memory memory[2];
            for (vk::Memory& m : memory) {
                const Status taken = vk::Memory::take(opened->gpu, host).get(m);
                CHECK_MESSAGE(taken.ok(), taken.message());
            }
            CHECK(heaps.used[0] > 12 << 20);
            CHECK(heaps.used[1] > 12 << 20);
        }
    }
    heaps.combined = false;
    CHECK(heaps.placed.empty());
    {
        const vk::DeviceTraits traits = open_shape(kDiscrete).value()->gpu->traits;
        CHECK(traits.type_device == 0);
        CHECK(traits.type_upload == 1);
        CHECK_FALSE(traits.spills());
    }
    heaps = TwoHeaps();
}

TEST_CASE("a budget of 0, or one larger than the heap, is not believed") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    struct Budget {
        uint64_t told, discrete, integrated;
    };
    for (const Budget& b : {Budget{32 << 20, 32 << 20, 64 << 20},                // as told
                            Budget{0, 53687088, UINT64_MAX},                     // as without the extension
                            Budget{18446744073271062528u, 64 << 20, 320 << 20},  // seen with RADV
                            Budget{uint64_t{1} << 40, 64 << 20, 320 << 20}}) {
        CAPTURE(b.told);
        heaps = TwoHeaps();
        heaps.size[0] = 64 << 20;
        heaps.size[1] = 256 << 20;
        heaps.budget = true;
        heaps.told = b.told;
        const vk::OpenDeviceRef opened = open_shape(kDiscrete).value();
        CHECK(opened->gpu->budget_bytes() == b.discrete);
        {
            const Device device = device_on(opened);
            Model model;
            const Status load = Model::load(device, bytes).get(model);
            REQUIRE_MESSAGE(load.ok(), load.message());
            CHECK(opened->gpu->budget_bytes() == b.discrete - heaps.used[0]);
            SessionOptions options;
            options.n_context = 49152;
            options.n_ubatch = 512;
            const Result<MemoryPlan> plan = Session::plan(model, options);
            REQUIRE_MESSAGE(plan.ok(), plan.status().message());
            CHECK_FALSE(plan.value().fits);
        }
        CHECK(open_shape(kIntegrated).value()->gpu->budget_bytes() == b.integrated);
    }
    heaps = TwoHeaps();
}

TEST_CASE("blocks of device memory end at whole pages within the limit of allocations") {
    vk::DeviceTraits t;
    t.max_allocation_bytes = t.max_buffer_bytes = UINT32_MAX;  // Turnip and PanVK; drivers round up to pages
    CHECK(vk::MemoryPlan(t).max_region_bytes() == 4294967296 - 65536 - 256);
    t.max_allocation_bytes = t.max_buffer_bytes = 4 << 20;
    CHECK(vk::MemoryPlan(t).max_region_bytes() == (4 << 20) - 256);
    t.max_allocation_bytes = UINT64_MAX;
    CHECK(vk::MemoryPlan(t).max_region_bytes() == (4 << 20) - 256);
}

// Two devices of one card: the first through Dozen, the second by the card's own driver.
namespace two_drivers {
VkPhysicalDevice own = VK_NULL_HANDLE;
const VkPhysicalDevice dozen = reinterpret_cast<VkPhysicalDevice>(&own);
uint32_t version = 0;  ///< of both; 0: as it is
bool tells = true;     ///< there is VK_KHR_driver_properties
VkPhysicalDeviceType own_type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
vk::InstanceTable real;

VkResult VKAPI_PTR enumerate(VkInstance instance, uint32_t* n, VkPhysicalDevice* out) {
    uint32_t one = 1;
    real.vkEnumeratePhysicalDevices(instance, &one, &own);
    *n = 2;
    if (out) out[0] = dozen, out[1] = own;
    return VK_SUCCESS;
}
VkPhysicalDevice real_of(VkPhysicalDevice d) { return d == dozen ? own : d; }
void VKAPI_PTR properties(VkPhysicalDevice d, VkPhysicalDeviceProperties2* p) {
    real.vkGetPhysicalDeviceProperties2(real_of(d), p);
    if (version != 0) p->properties.apiVersion = version;
    p->properties.deviceType = d == dozen ? VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU : own_type;
    std::snprintf(p->properties.deviceName, sizeof p->properties.deviceName, "%s",
                  d == dozen ? "Microsoft Direct3D12 (Radeon)" : "Radeon");
    for (auto* s = static_cast<VkBaseOutStructure*>(p->pNext); s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES) {
            CHECK(tells);
            as<VkPhysicalDeviceDriverProperties>(s).driverID =
                d == dozen ? VkDriverId(23) : VK_DRIVER_ID_AMD_PROPRIETARY;
        }
}
/// No others: their functions would get a device that the driver does not know.
VkResult VKAPI_PTR extensions(VkPhysicalDevice, const char*, uint32_t* n, VkExtensionProperties* p) {
    *n = tells ? 1 : 0;
    if (tells && p) *p = {VK_KHR_DRIVER_PROPERTIES_EXTENSION_NAME, VK_KHR_DRIVER_PROPERTIES_SPEC_VERSION};
    return VK_SUCCESS;
}
void VKAPI_PTR features(VkPhysicalDevice d, VkPhysicalDeviceFeatures2* f) {
    real.vkGetPhysicalDeviceFeatures2(real_of(d), f);
}
void VKAPI_PTR memory(VkPhysicalDevice d, VkPhysicalDeviceMemoryProperties2* m) {
    real.vkGetPhysicalDeviceMemoryProperties2(real_of(d), m);
}
void VKAPI_PTR families(VkPhysicalDevice d, uint32_t* n, VkQueueFamilyProperties* p) {
    real.vkGetPhysicalDeviceQueueFamilyProperties(real_of(d), n, p);
}
VkResult VKAPI_PTR create(VkPhysicalDevice d, const VkDeviceCreateInfo* info, const VkAllocationCallbacks* a,
                          VkDevice* out) {
    return real.vkCreateDevice(real_of(d), info, a, out);
}
vk::GpuRef open(int index = -1) {
    DeviceOptions options;
    options.kind = Kind::vulkan;
    options.vulkan_index = index;
    vk::OpenDetail detail;
    detail.edit_instance = [](vk::InstanceTable* t) {
        if (!t->vkEnumeratePhysicalDevices) return;  // before there is an instance
        real = *t;
        t->vkEnumeratePhysicalDevices = enumerate;
        t->vkGetPhysicalDeviceProperties2 = properties;
        t->vkEnumerateDeviceExtensionProperties = extensions;
        t->vkGetPhysicalDeviceFeatures2 = features;
        t->vkGetPhysicalDeviceMemoryProperties2 = memory;
        t->vkGetPhysicalDeviceQueueFamilyProperties = families;
        t->vkCreateDevice = create;
    };
    return vk::open_gpu(options, detail).value();
}
}  // namespace two_drivers

TEST_CASE("a card's own driver comes before Dozen, which offers it over Direct3D 12") {
    if (!gpu_device()) return;
    using namespace two_drivers;
    const std::string
        passed = "passed over 0: Microsoft Direct3D12 (Radeon) (discrete, Vulkan 1.",
        why =
            "): it is Dozen, Vulkan over Direct3D 12, which is used where no GPU has a driver of its own, "
            "or by its index";
    // Each of Vulkan 1.1, so that the extension counts, and as it is.
    for (const uint32_t v : {VK_API_VERSION_1_1, 0u}) {
        CAPTURE(v);
        version = v;
        for (const VkPhysicalDeviceType type :
             {VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU,
              VK_PHYSICAL_DEVICE_TYPE_OTHER}) {
            own_type = type;
            const vk::GpuRef gpu = open();
            CHECK(gpu->traits.name == "Radeon");
            CHECK(gpu->report().find(passed) != std::string::npos);
            CHECK(gpu->report().find(why) != std::string::npos);
        }
        own_type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
        const vk::GpuRef asked = open(0);
        CHECK(asked->traits.name == "Microsoft Direct3D12 (Radeon)");
        CHECK(asked->report().find("passed over") == std::string::npos);
        own_type = VK_PHYSICAL_DEVICE_TYPE_CPU;  // better than software
        CHECK(open()->traits.name == "Microsoft Direct3D12 (Radeon)");
        own_type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    }
    version = VK_API_VERSION_1_1;
    tells = false;  // nothing is asked that such a device need not know: the first is taken
    CHECK(open()->traits.name == "Microsoft Direct3D12 (Radeon)");
    tells = true;
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
        Device device = device_on(open_shape(*with, 0, {}).value());  // short loops would be refused before the size
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
