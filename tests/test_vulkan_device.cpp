// The Vulkan room below the kernels: opening, memory, transfers, pipelines, recordings, self-test.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/selftest.h"
#include "../src/machine/vulkan/vulkan.h"
#include "support.h"
#include "vulkan_rig.h"

#include <cstring>
#include <thread>

using namespace auspex;
using namespace auspex::detail;
using test::Vulkan;

namespace {

std::vector<uint32_t> numbers(size_t n, uint64_t seed) {
    test::Random random(seed);
    std::vector<uint32_t> v(n);
    for (uint32_t& x : v) x = static_cast<uint32_t>(random.next());
    return v;
}

VkResult VKAPI_CALL refuse_allocation(VkDevice, const VkMemoryAllocateInfo*, const VkAllocationCallbacks*,
                                      VkDeviceMemory*) {
    return VK_ERROR_OUT_OF_DEVICE_MEMORY;
}
VkResult VKAPI_CALL refuse_submit(VkQueue, uint32_t, const VkSubmitInfo*, VkFence) { return VK_ERROR_DEVICE_LOST; }
VkResult VKAPI_CALL refuse_layout(VkDevice, const VkPipelineLayoutCreateInfo*, const VkAllocationCallbacks*,
                                  VkPipelineLayout*) {
    return VK_ERROR_OUT_OF_HOST_MEMORY;
}
VkResult VKAPI_CALL refuse_instance(const VkInstanceCreateInfo*, const VkAllocationCallbacks*, VkInstance*) {
    return VK_ERROR_INCOMPATIBLE_DRIVER;
}
VkResult VKAPI_CALL no_physical_devices(VkInstance, uint32_t* n, VkPhysicalDevice*) {
    *n = 0;
    return VK_SUCCESS;
}
VkResult VKAPI_CALL refuse_device(VkPhysicalDevice, const VkDeviceCreateInfo*, const VkAllocationCallbacks*,
                                  VkDevice*) {
    return VK_ERROR_INITIALIZATION_FAILED;
}
void VKAPI_CALL no_queues(VkPhysicalDevice, uint32_t* n, VkQueueFamilyProperties*) { *n = 0; }
Status open_with(const std::function<void(vk::OpenDetail*)>& edit, DeviceOptions options = {}) {
    vk::OpenDetail detail;
    edit(&detail);
    options.kind = Kind::vulkan;
    return vk::open_gpu(options, detail).status();
}

}  // namespace

// ----------------------------------------------------------------------------------------- opening

TEST_CASE("a missing Vulkan loader is an error") {
    const Status s = open_with([](vk::OpenDetail* d) { d->loader_path = "no-such-loader.so"; });
    CHECK(s.code == Code::no_device);
    CHECK(s.text.find("no-such-loader.so") != std::string::npos);
}

TEST_CASE("each failing step of opening a device is an error and leaks nothing") {
    auto probe = Vulkan::open();
    if (!probe) return;
    probe->finish();
    CHECK(open_with([](vk::OpenDetail* d) {
              d->edit_instance = [](vk::InstanceTable* t) { t->vkCreateInstance = refuse_instance; };
          }).code == Code::no_device);
    CHECK(open_with([](vk::OpenDetail* d) {
              d->edit_instance = [](vk::InstanceTable* t) { t->vkEnumeratePhysicalDevices = no_physical_devices; };
          }).code == Code::no_device);
    CHECK(open_with([](vk::OpenDetail* d) {
              d->edit_instance = [](vk::InstanceTable* t) { t->vkGetPhysicalDeviceQueueFamilyProperties = no_queues; };
          }).code == Code::no_device);
    CHECK(open_with([](vk::OpenDetail* d) {
              d->edit_instance = [](vk::InstanceTable* t) { t->vkCreateDevice = refuse_device; };
          }).code == Code::no_device);
    CHECK(open_with([](vk::OpenDetail* d) {
              d->edit_device = [](VolkDeviceTable* t) { t->vkCreatePipelineLayout = refuse_layout; };
          }).code == Code::out_of_memory);
    DeviceOptions far;
    far.vulkan_index = 1000;
    const Status s = open_with([](vk::OpenDetail*) {}, far);
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("1000") != std::string::npos);
}

TEST_CASE("Kind::best takes a software device only if allowed") {
    DeviceOptions options;
    auto best = vk::open_gpu(options);
    if (best.ok()) {
        CHECK(!best.value()->traits.is_cpu());
        return;
    }
    CHECK(best.status().code == Code::no_device);
    vk::OpenDetail detail;
    detail.allow_software = true;
    auto software = vk::open_gpu(options, detail);
    if (!software.ok()) {
        test::skip_without_device(software.status().text);
        return;
    }
    CHECK(best.status().text.find("software") != std::string::npos);
    CHECK(software.value()->traits.is_cpu());
    CHECK(software.value()->budget_bytes() == UINT64_MAX);  // its heap size is a figure, not a limit
    // It compiles kernels when they first run, so a step may take more than a minute.
    CHECK(software.value()->timeout_ns == 600'000'000'000);
    detail.edit_traits = [](vk::DeviceTraits* t) { t->type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU; };
    software = vk::open_gpu(options, detail);
    REQUIRE(software.ok());
    CHECK(software.value()->timeout_ns == 60'000'000'000);
}

TEST_CASE("a device is opened and closed as often as an application likes") {
    DeviceOptions options;
    options.kind = Kind::vulkan;
    const Status first = vk::open_gpu(options).status();
    if (first.code == Code::no_device) return test::skip_without_device(first.text);
    for (int i = 0; i < 40; ++i) {  // a driver that was unloaded each time got no further than twenty
        CAPTURE(i);
        const Status s = vk::open_gpu(options).status();
        REQUIRE_MESSAGE(s.ok(), s.message());
    }
}

TEST_CASE("a driver that rejects its own features is asked again without them") {
    static PFN_vkCreateDevice real = nullptr;
    static int calls = 0;
    calls = 0;
    vk::OpenDetail detail;
    detail.edit_instance = [](vk::InstanceTable* t) {
        if (!t->vkCreateDevice) return;  // the loader's own functions come first
        real = t->vkCreateDevice;
        t->vkCreateDevice = [](VkPhysicalDevice p, const VkDeviceCreateInfo* i, const VkAllocationCallbacks* a,
                               VkDevice* d) -> VkResult {
            return ++calls == 1 ? VK_ERROR_FEATURE_NOT_PRESENT : real(p, i, a, d);
        };
    };
    auto v = Vulkan::open(detail);
    if (!v) return;
    CHECK(calls == 2);
    CHECK(!v->gpu->traits.dot);
    CHECK(v->gpu->report().find("VK_ERROR_FEATURE_NOT_PRESENT") != std::string::npos);
    v->finish();
}

TEST_CASE("where the best device cannot be opened, the next one is") {
    auto probe = Vulkan::open();
    if (!probe) return;
    probe->finish();
    static PFN_vkEnumeratePhysicalDevices real = nullptr;
    static PFN_vkCreateDevice real_create = nullptr;
    static int n_refused = 0;
    vk::OpenDetail detail;
    detail.edit_instance = [](vk::InstanceTable* t) {
        if (!t->vkEnumeratePhysicalDevices) return;  // the loader's own functions come first
        real = std::exchange(t->vkEnumeratePhysicalDevices, [](VkInstance i, uint32_t* n, VkPhysicalDevice* to) {
            uint32_t one = 1;
            const VkResult r = real(i, &one, to);
            if (to && *n > 1) to[1] = to[0];
            *n = 2;
            return r == VK_INCOMPLETE ? VK_SUCCESS : r;
        });
        real_create = std::exchange(t->vkCreateDevice, [](VkPhysicalDevice p, const VkDeviceCreateInfo* i,
                                                          const VkAllocationCallbacks* a, VkDevice* d) {
            return n_refused-- > 0 ? VK_ERROR_OUT_OF_HOST_MEMORY : real_create(p, i, a, d);
        });
    };
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDeviceRef opened;
    n_refused = 1;
    const Status s = vk::open_device(options, detail).get(opened);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const std::string report = opened->gpu->report();
    CHECK_MESSAGE(report.find("VK_ERROR_OUT_OF_HOST_MEMORY") != std::string::npos, report);
    opened.reset();
    n_refused = 2;
    const Status none = vk::open_device(options, detail).status();
    CHECK(none.code == Code::out_of_memory);
    CHECK(none.text.find(" 0: ") < none.text.find(" 1: "));
    CHECK_MESSAGE(none.text.find(" 1: ") != std::string::npos, none.message());
    options.vulkan_index = 0;  // what is asked for by name is not replaced
    n_refused = 1;
    CHECK(vk::open_device(options, detail).status().code == Code::out_of_memory);
}

TEST_CASE("with barriers_only no stage waits by counters, whatever the device does") {
    if (!test::gpu_device()) return;
    vk::OpenDetail detail;
    detail.edit_traits = [](vk::DeviceTraits* t) { t->starts_in_order = true; };
    DeviceOptions options;
    options.kind = Kind::vulkan;
    for (const bool only : {false, true}) {
        options.barriers_only = only;
        const vk::OpenDeviceRef opened = vk::open_device(options, detail).value();
        CHECK(opened->gpu->traits.starts_in_order == !only);
        CHECK((opened->gpu->report().find("start in order") == std::string::npos) == only);
    }
}

TEST_CASE("the report names the device, and the function tables of the library are separate") {
    auto v = Vulkan::open();
    if (!v) return;
    const std::string report = v->gpu->report();
    CHECK(report.find(v->gpu->traits.name) != std::string::npos);
    CHECK(report.find("subgroups") != std::string::npos);
    CHECK((v->gpu->vk.vkCmdDispatch != nullptr));
    CHECK((v->gpu->vk.vkCmdDraw == nullptr));  // only what is used is loaded
    v->finish();
}

TEST_CASE("a device of the application works under the application's lock and stays open") {
    auto host = Vulkan::open();
    if (!host) return;
    int locks = 0, unlocks = 0;
    VulkanHandles h;
    h.instance = host->gpu->instance;
    h.physical_device = host->gpu->physical;
    h.device = host->gpu->device;
    h.queue = host->gpu->queue;
    h.queue_family = host->gpu->traits.queue_family;
    h.get_instance_proc_addr = reinterpret_cast<void*>(host->gpu->vki.vkGetInstanceProcAddr);
    h.lock_queue = [&] { ++locks; };
    h.unlock_queue = [&] { ++unlocks; };
    DeviceOptions options;
    options.borrow = &h;
    {
        auto guest = vk::open_gpu(options);
        REQUIRE_MESSAGE(guest.ok(), guest.status().message());
        CHECK(guest.value()->traits.borrowed);
        CHECK(!guest.value()->traits.dot);  // nothing was said of it
        auto pipelines = vk::Pipelines::create(guest.value(), test::shaders());
        REQUIRE(pipelines.ok());
        auto tested = vk::run_selftest(guest.value(), *pipelines.value());
        REQUIRE_MESSAGE(tested.ok(), tested.status().message());
        CHECK(tested.value().passed("half_subnormals"));
        CHECK(!tested.value().passed("integer_dot"));
        CHECK(locks > 0);
        CHECK(locks == unlocks);
    }
    // With the features told, they are used; without timeline semaphores, fences are.
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot{};
    dot.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
    dot.shaderIntegerDotProduct = host->gpu->traits.dot;
    VkPhysicalDeviceVulkan12Features v12{};
    v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    v12.pNext = &dot;
    VkPhysicalDeviceFeatures2 features{};
    features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    features.pNext = &v12;
    h.enabled_features = &features;
    for (const bool timeline : {false, true}) {
        v12.timelineSemaphore = timeline;
        auto guest = vk::open_gpu(options);
        REQUIRE(guest.ok());
        CHECK(guest.value()->traits.dot == host->gpu->traits.dot);
        CHECK(guest.value()->traits.timeline == timeline);
    }
    h.queue = nullptr;
    CHECK(vk::open_gpu(options).status().code == Code::bad_argument);
    h.queue = host->gpu->queue;
    h.queue_family = 99;
    CHECK(vk::open_gpu(options).status().text.find("lend a queue of a family with") != std::string::npos);
    static const vk::InstanceTable* real = nullptr;
    real = &host->gpu->vki;
    const PFN_vkGetInstanceProcAddr shim = [](VkInstance instance, const char* name) -> PFN_vkVoidFunction {
        const PFN_vkGetPhysicalDeviceProperties2 few = [](VkPhysicalDevice device, VkPhysicalDeviceProperties2* p) {
            real->vkGetPhysicalDeviceProperties2(device, p);
            p->properties.limits.maxPushConstantsSize = 64;
        };
        const bool mine = std::strcmp(name, "vkGetPhysicalDeviceProperties2") == 0;
        return mine ? reinterpret_cast<PFN_vkVoidFunction>(few) : real->vkGetInstanceProcAddr(instance, name);
    };
    h.get_instance_proc_addr = reinterpret_cast<void*>(shim);
    CHECK(vk::open_gpu(options).status().text.find("64 bytes of push constants, 128 are needed; lend") !=
          std::string::npos);
    host->finish();
}

TEST_CASE(
    "a device that gives addresses by their older name uses them; one without functions of Vulkan 1.1 is refused") {
    if (!test::gpu_device()) return;
    // What drivers do for an instance that was made for an older version; such a one would break rules on the way here.
    static const char* hidden = "";
    static bool older_name = false;
    static PFN_vkGetDeviceProcAddr get_address = nullptr;
    static PFN_vkCreateDevice create_device = nullptr;
    vk::OpenDetail detail;
    detail.edit_instance = [](vk::InstanceTable* t) {
        if (!t->vkCreateDevice) return;  // before there is an instance
        const auto find = [](VkDevice device, const char* name) -> PFN_vkVoidFunction {
            return std::strcmp(name, hidden) == 0 ? nullptr : get_address(device, name);
        };
        const auto named = [](VkPhysicalDevice physical, const VkDeviceCreateInfo* info, const VkAllocationCallbacks* a,
                              VkDevice* out) -> VkResult {
            std::vector<const char*> names(info->ppEnabledExtensionNames,
                                           info->ppEnabledExtensionNames + info->enabledExtensionCount);
            if (older_name) names.push_back(VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME);
            VkDeviceCreateInfo with = *info;
            with.enabledExtensionCount = uint32_t(names.size());
            with.ppEnabledExtensionNames = names.data();
            return create_device(physical, &with, a, out);
        };
        get_address = std::exchange(t->vkGetDeviceProcAddr, find);
        create_device = std::exchange(t->vkCreateDevice, named);
    };
    DeviceOptions options;
    options.kind = Kind::vulkan;
    const bool addresses = vk::open_gpu(options, detail).value()->traits.addresses;
    hidden = "vkGetBufferDeviceAddress";
    for (const bool named : {false, true}) {
        older_name = named && addresses;
        const auto gpu = vk::open_gpu(options, detail);
        REQUIRE_MESSAGE(gpu.ok(), gpu.status().message());
        if (older_name) CHECK(gpu.value()->traits.addresses);
    }
    older_name = false;
    hidden = "vkTrimCommandPool";
    const Status s = vk::open_gpu(options, detail).status();
    CHECK(s.code == Code::no_device);
    CHECK_MESSAGE(s.text.find("version 1.1 is needed") != std::string::npos, s.message());
}

// ------------------------------------------------------------------------------------------ memory

TEST_CASE("a memory plan keeps every region whole, aligned and within the block sizes of the device") {
    vk::DeviceTraits t;
    t.max_allocation_bytes = 64u << 20;
    t.max_buffer_bytes = 48u << 20;
    t.storage_align = 1024;
    vk::MemoryPlan plan(t);
    CHECK(plan.max_region_bytes() == (48u << 20) - 1024);
    for (int i = 0; i < 5; ++i) plan.add(vk::Arena::weights, 20u << 20);
    plan.add(vk::Arena::caches, 1);
    plan.add(vk::Arena::ring, 4096);
    // Two of 20 MiB fit one block of 48: three blocks, each with its tail.
    CHECK(plan.arena_bytes(vk::Arena::weights) == 5 * (20ull << 20) + 3 * 1024);
    CHECK(plan.arena_bytes(vk::Arena::caches) == 1024 + 1024);
    CHECK(plan.device_bytes() == plan.arena_bytes(vk::Arena::weights) + 2048);
    CHECK(plan.arena_bytes(vk::Arena::ring) == 4096 + 1024);
}

TEST_CASE("device memory is counted to the byte and freed") {
    auto v = Vulkan::open();
    if (!v) return;
    vk::MemoryPlan plan(v->gpu->traits);
    const auto a = plan.add(vk::Arena::weights, 1000), b = plan.add(vk::Arena::weights, 5000),
               r = plan.add(vk::Arena::ring, 64);
    {
        auto memory = vk::Memory::take(v->gpu, plan);
        REQUIRE_MESSAGE(memory.ok(), memory.status().message());
        const vk::Memory& m = memory.value();
        CHECK(m[a].bytes == 1000);
        CHECK(m[b].offset >= 1000);
        CHECK(m[b].offset % v->gpu->traits.storage_align == 0);
        CHECK(m[r].mapped != nullptr);
        CHECK(v->gpu->device_bytes.load() == m.device_bytes());
        CHECK(m.device_bytes() >= plan.device_bytes());
        CHECK(v->gpu->host_bytes.load() == m.host_bytes());
    }
    CHECK(v->gpu->device_bytes.load() == 0);
    v->finish();
}

TEST_CASE("a request for too much memory is an error with both numbers") {
    DeviceOptions options;
    options.memory_limit_bytes = 1 << 20;
    auto v = Vulkan::open({}, options);
    if (!v) return;
    vk::MemoryPlan plan(v->gpu->traits);
    plan.add(vk::Arena::weights, 3 << 20);
    const Status over = vk::Memory::take(v->gpu, plan).status();
    CHECK(over.code == Code::out_of_memory);
    CHECK(over.text.find("4 MiB") != std::string::npos);  // with the tail
    CHECK(over.text.find("1 MiB left") != std::string::npos);
    vk::MemoryPlan huge(v->gpu->traits);
    huge.add(vk::Arena::weights, huge.max_region_bytes() + 1, "head");
    const Status whole = vk::Memory::take(v->gpu, huge).status();
    CHECK(whole.code == Code::bad_argument);
    CHECK(whole.text.find("head") != std::string::npos);
    vk::MemoryPlan endless(v->gpu->traits);
    endless.add(vk::Arena::caches, UINT64_MAX);
    CHECK(vk::Memory::take(v->gpu, endless).status().code == Code::bad_argument);
    v->finish();

    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* d) { d->vkAllocateMemory = refuse_allocation; };
    auto w = Vulkan::open(detail);
    vk::MemoryPlan small(w->gpu->traits);
    small.add(vk::Arena::weights, 100);
    const Status refused = vk::Memory::take(w->gpu, small).status();
    CHECK(refused.code == Code::out_of_memory);
    CHECK(refused.text.find("vkAllocateMemory") != std::string::npos);
    w->finish();
}

TEST_CASE("uploads and downloads of any size keep the bytes, mapped or staged") {
    for (const int way : {0, 1, 2}) {  // mapped; mapped, but slow to read; staged: lavapipe has one memory type only
        vk::OpenDetail detail;
        if (way == 2) detail.direct_upload = 0;
        auto v = Vulkan::open(detail);
        if (!v) return;
        v->gpu->traits.device_mapped &= way < 2, v->gpu->traits.device_readable = way == 0;
        if (way < 2 && !v->gpu->traits.device_mapped) MESSAGE("this device's memory is not mapped");
        vk::MemoryPlan plan(v->gpu->traits);
        const std::vector<uint32_t> data = numbers(70000, 3);
        const uint64_t n = data.size() * 4 - 3;
        const auto a = plan.add(vk::Arena::weights, n), b = plan.add(vk::Arena::caches, n),
                   c = plan.add(vk::Arena::caches, 40000);
        {
            vk::Memory m;
            vk::Transfer t;
            REQUIRE(vk::Memory::take(v->gpu, plan).get(m).ok());
            REQUIRE(vk::Transfer::create(v->gpu, 8192).get(t).ok());
            CHECK((m[a].mapped != nullptr) == v->gpu->traits.device_mapped);
            CHECK(t.write(m[a], data.data(), n).ok());
            CHECK(t.copy(m[b], m[a]).ok());
            CHECK(t.fill(m[c], 0x01020304).ok());
            uint64_t expected = 0;
            CHECK(t.write(m[c].part(512, 36), 36, 12, [&](std::byte* to, uint64_t at, uint64_t k) {
                       CHECK(at == expected);
                       CHECK(k % 12 == 0);
                       expected += k;
                       std::memset(to, 7, k);
                       return Status();
                   }).ok());
            CHECK(expected == 36);
            std::vector<uint32_t> back(data.size());
            back.back() = data.back();
            CHECK(t.read(m[b], back.data(), n).ok());
            CHECK(std::memcmp(back.data(), data.data(), n) == 0);
            std::vector<uint32_t> filled(10000);
            CHECK(t.read(m[c], filled.data(), 40000).ok());
            CHECK(filled[0] == 0x01020304u);
            CHECK(filled[127] == 0x01020304u);
            CHECK(filled[128] == 0x07070707u);
            CHECK(filled[136] == 0x07070707u);
            CHECK(filled[137] == 0x01020304u);
            CHECK(filled[9999] == 0x01020304u);
            // What cannot be is refused, and a filler's error is passed on.
            CHECK(t.write(m[c], data.data(), 40001).code == Code::bad_argument);
            CHECK(t.read(m[c], filled.data(), 40001).code == Code::bad_argument);
            CHECK(t.write(m[c], 100, 0, nullptr).code == Code::bad_argument);
            CHECK(t.write(m[c], 100, 10, [](std::byte*, uint64_t, uint64_t) {
                       return Status(Code::cancelled, "enough");
                   }).code == Code::cancelled);
            CHECK(t.fill(m[c].part(2, 8), 0).code == Code::bad_argument);
            CHECK(t.finish().ok());
        }
        v->finish();
    }
}

// -------------------------------------------------------------------------------------- recordings

TEST_CASE("a recording can be replayed, its barriers order memory, its timestamps increase") {
    auto v = Vulkan::open();
    if (!v || !test::can_shuffle(*v)) return;
    const VkPipeline shuffle = v->make({"selftest_shuffle", 64, {}, 0, true});
    vk::MemoryPlan plan(v->gpu->traits);
    const auto a = plan.add(vk::Arena::scratch, 4096), b = plan.add(vk::Arena::scratch, 4096),
               c = plan.add(vk::Arena::ring, 4096);
    {
        vk::Memory m;
        vk::Commands k;
        REQUIRE(vk::Memory::take(v->gpu, plan).get(m).ok());
        REQUIRE(vk::Commands::create(v->gpu, 8).get(k).ok());
        REQUIRE(k.begin().ok());
        k.timestamp("begin");
        k.fill(m[a], 0x3f800000);  // 1.0f
        k.barrier(vk::kSyncTransfer, vk::kSyncCompute);
        k.bind(shuffle, {m[a], m[b]});
        k.push(1024u);
        k.dispatch(16);
        k.barrier();
        k.timestamp("first");
        k.bind(shuffle, {m[b], m[c]});
        k.barrier(vk::kSyncCompute, vk::kSyncCompute | vk::kSyncTransfer);
        k.dispatch(16);
        k.barrier();
        k.bind(shuffle, {m[a], m[b]});  // the first set again
        k.dispatch(16);
        k.timestamp("rest");
        REQUIRE_MESSAGE(k.end().ok(), k.end().message());
        CHECK(k.n_dispatch() == 3);
        CHECK(k.n_set() == 2);
        for (int replay = 0; replay < 3; ++replay) {
            std::memset(m[c].mapped, 0, 4096);
            const Status s = k.run();
            REQUIRE_MESSAGE(s.ok(), s.message());
            for (uint32_t i = 0; i < 1024; ++i) CHECK(load<float>(m[c].mapped + 4 * i) == 64.0f);
        }
        auto times = k.timings();
        REQUIRE(times.ok());
        if (v->gpu->traits.timestamp_bits > 0) {
            REQUIRE(times.value().size() == 2);
            CHECK(times.value()[0].first == "first");
            CHECK(times.value()[1].second >= 0);
            CHECK(times.value()[1].second < 10e6);
        }
        // A second recording in the same object, with more sets than one pool holds.
        REQUIRE(k.begin(true).ok());
        vk::Region r = m[a];
        for (uint32_t i = 0; i < 200; ++i) {
            r.bytes = 1024 + 4 * i;
            k.bind(shuffle, {r, m[b]});
            k.push(64u);
            k.dispatch(1);
            k.barrier();
        }
        REQUIRE(k.end().ok());
        CHECK(k.n_set() == 200);
        CHECK(k.run().ok());
    }
    v->finish();
}

TEST_CASE("an invalid command is rejected by name before the driver sees it") {
    auto v = Vulkan::open();
    if (!v) return;
    const VkPipeline p = v->make({"selftest_shuffle", 64, {}, 0, true});
    vk::MemoryPlan plan(v->gpu->traits);
    const auto a = plan.add(vk::Arena::scratch, 4096);
    {
        vk::Memory m;
        vk::Commands k;
        REQUIRE(vk::Memory::take(v->gpu, plan).get(m).ok());
        REQUIRE(vk::Commands::create(v->gpu, 1).get(k).ok());
        auto refused = [&](const char* word, const std::function<void()>& what) {
            REQUIRE(k.begin().ok());
            what();
            const Status s = k.end();
            CHECK(s.code == Code::bad_argument);
            CHECK_MESSAGE(s.text.find(word) != std::string::npos, s.text);
            CHECK(k.run().code == Code::bad_argument);
        };
        CHECK(k.run().code == Code::bad_argument);
        CHECK(k.end().code == Code::bad_argument);
        refused("nothing is bound", [&] { k.dispatch(1); });
        refused("null", [&] { k.bind(VK_NULL_HANDLE, {m[a]}); });
        refused("empty region", [&] { k.bind(p, {m[a], vk::Region()}); });
        refused("multiple", [&] { k.bind(p, {m[a].part(4, 100)}); });
        refused("13 buffers", [&] { k.bind(p, std::vector<vk::Region>(13, m[a])); });
        refused("through one binding", [&] {
            vk::Region r = m[a];
            r.bytes = v->gpu->traits.max_storage_range + 1;
            k.bind(p, {r});
        });
        refused("push", [&] { k.push(m[a].mapped, 132); });
        refused("groups", [&] {
            k.bind(p, {m[a], m[a]});
            k.dispatch(1, v->gpu->traits.max_group_count[1] + 1);
        });
        refused("fill", [&] { k.fill(m[a].part(0, 3), 0); });
        refused("barrier", [&] { k.barrier(0, 0); });
        if (v->gpu->traits.timestamp_bits > 0)
            refused("timestamp", [&] {
                k.timestamp("one");
                k.timestamp("two");
            });
    }
    v->finish();
}

TEST_CASE("the validation layer reports a missing barrier") {
    auto v = Vulkan::open();
    if (!v) return;
    if (!v->messages) {
        test::skip("needs the Vulkan validation layers");
        return;
    }
    const VkPipeline p = v->make({"selftest_shuffle", 64, {}, 0, true});
    vk::MemoryPlan plan(v->gpu->traits);
    const auto a = plan.add(vk::Arena::scratch, 4096), b = plan.add(vk::Arena::scratch, 4096),
               c = plan.add(vk::Arena::scratch, 4096);
    {
        vk::Memory m;
        vk::Commands k;
        REQUIRE(vk::Memory::take(v->gpu, plan).get(m).ok());
        REQUIRE(vk::Commands::create(v->gpu).get(k).ok());
        REQUIRE(k.begin().ok());
        k.bind(p, {m[a], m[b]});
        k.push(64u);
        k.dispatch(1);
        k.bind(p, {m[b], m[c]});
        k.dispatch(1);
        CHECK(k.end().ok());
    }
    CHECK(v->messages->count() > 0);  // so that the hot_path of all other tests means something
    v->pipelines.reset();
    v->gpu.reset();
}

TEST_CASE("a lost device is an error now and in later calls") {
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* d) { d->vkQueueSubmit = refuse_submit; };
    auto v = Vulkan::open(detail);
    if (!v) return;
    {
        vk::Commands k;
        REQUIRE(vk::Commands::create(v->gpu).get(k).ok());
        REQUIRE(k.begin().ok());
        REQUIRE(k.end().ok());
        const Status first = k.run(), second = k.run();
        CHECK(first.code == Code::device_lost);
        CHECK(first.text.find("vkQueueSubmit") != std::string::npos);
        CHECK(second.code == Code::device_lost);
    }
    v->finish();
}

TEST_CASE("several threads can record and submit at once") {
    auto v = Vulkan::open();
    if (!v || !test::can_shuffle(*v)) return;
    const VkPipeline p = v->make({"selftest_shuffle", 64, {}, 0, true});
    std::vector<std::thread> threads;
    std::vector<Status> results(4);
    for (size_t i = 0; i < results.size(); ++i)
        threads.emplace_back([&, i] {
            vk::MemoryPlan plan(v->gpu->traits);
            const auto a = plan.add(vk::Arena::scratch, 4096), b = plan.add(vk::Arena::ring, 4096);
            vk::Memory m;
            vk::Commands k;
            Status s = vk::Memory::take(v->gpu, plan).get(m);
            if (s.ok()) s = vk::Commands::create(v->gpu).get(k);
            for (int n = 0; s.ok() && n < 10; ++n) {
                s = k.begin();
                if (!s.ok()) break;
                const float one = float(i + 1);
                k.fill(m[a], load<uint32_t>(&one));
                k.barrier(vk::kSyncTransfer, vk::kSyncCompute);
                k.bind(p, {m[a], m[b]});
                k.push(1024u);
                k.dispatch(16);
                s = k.end();
                if (s.ok()) s = k.run();
                for (uint32_t j = 0; s.ok() && j < 1024; ++j)
                    if (load<float>(m[b].mapped + 4 * j) != 8 * one)
                        s = Status(Code::bad_file, "a thread saw another's work");
            }
            results[i] = s;
        });
    for (std::thread& t : threads) t.join();
    for (const Status& s : results) CHECK_MESSAGE(s.ok(), s.message());
    v->finish();
}

#endif  // AUSPEX_NO_VULKAN
