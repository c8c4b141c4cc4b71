// A device that hangs, a device that is slow, and a system without threads: the process goes on.
#include "vulkan_support.h"

#ifndef AUSPEX_NO_VULKAN
#include <chrono>

#include "thread_failure.h"
#include "vulkan_model.h"

using namespace auspex;
using namespace auspex::detail;
using test::Vulkan;

constexpr auspex::detail::vk::SpecId kRowCount = auspex::detail::vk::spec::selftest::kNRow;

namespace {

// The driver's waiting, replaced. `n_left`: time-outs until the semaphore reaches its value; below 0: never.
struct Hang {
    bool on = false, advancing = false;
    int n_wait = 0, n_left = -1, n_destroyed = 0;
    uint64_t counter = 0;
    PFN_vkWaitSemaphores wait = nullptr;
    PFN_vkGetSemaphoreCounterValue value = nullptr;
} hang;

VkResult VKAPI_PTR hung_wait(VkDevice d, const VkSemaphoreWaitInfo* info, uint64_t ns) {
    if (!hang.on) return hang.wait(d, info, ns);
    ++hang.n_wait;
    if (ns > 1000000000) FAIL_CHECK("a wait of ", ns, " ns on a hung device");
    if (hang.n_left == 0) return hang.wait(d, info, UINT64_MAX);
    if (hang.n_left > 0) --hang.n_left;
    return VK_TIMEOUT;
}
VkResult VKAPI_PTR hung_value(VkDevice d, VkSemaphore s, uint64_t* value) {
    if (!hang.on) return hang.value(d, s, value);
    *value = hang.advancing ? ++hang.counter : 0;
    return VK_SUCCESS;
}
void VKAPI_PTR count_memory(VkDevice, VkDeviceMemory, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_buffer(VkDevice, VkBuffer, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_pool(VkDevice, VkCommandPool, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_semaphore(VkDevice, VkSemaphore, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_pipeline(VkDevice, VkPipeline, const VkAllocationCallbacks*) { ++hang.n_destroyed; }

vk::OpenDetail hanging(uint64_t timeout_ms) {
    hang = Hang();
    vk::OpenDetail detail;
    detail.timeout_ns = timeout_ms * 1000000;
    detail.edit_device = [](VolkDeviceTable* t) {
        hang.wait = t->vkWaitSemaphores;
        hang.value = t->vkGetSemaphoreCounterValue;
        t->vkWaitSemaphores = hung_wait;
        t->vkGetSemaphoreCounterValue = hung_value;
    };
    return detail;
}

/// From now on the device hangs, and destroying anything on it is counted instead.
void start_hang(vk::Gpu& gpu) {
    hang.on = true;
    gpu.vk.vkFreeMemory = count_memory;
    gpu.vk.vkDestroyBuffer = count_buffer;
    gpu.vk.vkDestroyCommandPool = count_pool;
    gpu.vk.vkDestroySemaphore = count_semaphore;
    gpu.vk.vkDestroyPipeline = count_pipeline;
}

double seconds_since(std::chrono::steady_clock::time_point t) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

TEST_CASE("a device that hangs is given up after the time-out, and nothing that it may still use is freed") {
    auto v = Vulkan::open(hanging(80));
    if (!v) return;
    {
        vk::MemoryPlan plan(v->gpu->traits);
        const auto region = plan.add(vk::Arena::scratch, 4096);
        vk::Memory memory;
        vk::Transfer transfer;
        vk::Commands commands;
        REQUIRE(vk::Memory::take(v->gpu, plan).get(memory).ok());
        REQUIRE(vk::Transfer::create(v->gpu, 4096).get(transfer).ok());
        REQUIRE(vk::Commands::create(v->gpu).get(commands).ok());
        REQUIRE(commands.begin().ok());
        commands.fill(memory[region], 1);
        REQUIRE(commands.end().ok());
        start_hang(*v->gpu);
        const Status s = commands.run();
        CHECK(s.code == Code::device_lost);
        CHECK(s.text.find("finished nothing for 80 ms") != std::string::npos);
        CHECK(v->gpu->stalled);
        CHECK(commands.run().code == Code::device_lost);    // refused before it is submitted
        (void)v->gpu->vk.vkDeviceWaitIdle(v->gpu->device);  // the real one: the test leaves nothing running
    }
    const auto begin = std::chrono::steady_clock::now();
    v->pipelines.reset();
    v->gpu.reset();
    CHECK(seconds_since(begin) < 5);
    CHECK(hang.n_destroyed == 0);
}

TEST_CASE("a model on a device that hangs can be closed, and another device opens") {
    auto probe = Vulkan::open();
    if (!probe) return;
    probe->finish();
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDeviceRef device;
    REQUIRE(vk::open_device(options, hanging(8000)).get(device).ok());
    {
        test::ContextRig rig(test_vulkan_model::tiny_of(true));
        std::shared_ptr<LoadedModel> model = rig.load(*vk::make_backend(device));
        std::unique_ptr<Context> context = rig.context(*model, {}, 128, 16);
        const std::vector<Token> ids = test::tiny_ids(4, 3);
        REQUIRE(context->run(rig.step(ids, 0, true, 4)).ok());
        context->commit(4);
        start_hang(*device->gpu);
        CHECK(context->run(rig.step(ids, 4, true, 4)).code == Code::device_lost);
        CHECK(context->run(rig.step(ids, 4, true, 4)).code == Code::device_lost);
        context->reset();
        (void)device->gpu->vk.vkDeviceWaitIdle(device->gpu->device);
    }
    device.reset();
    CHECK(hang.n_destroyed == 0);
    hang.on = false;
    auto next = Vulkan::open();
    REQUIRE(next);
    next->finish();
}

TEST_CASE("a slow device is not lost while its submissions finish one after the other") {
    auto v = Vulkan::open(hanging(80));
    if (!v) return;
    {
        vk::Timeline timeline;
        REQUIRE(vk::Timeline::create(v->gpu).get(timeline).ok());
        for (int i = 0; i < 100; ++i) REQUIRE(timeline.submit(Span<const VkCommandBuffer>()).ok());
        hang.on = hang.advancing = true;
        hang.n_left = 50;  // six times the slices of one time-out
        CHECK(timeline.wait(100).ok());
        CHECK(hang.n_wait == 51);
        hang.on = false;
    }
    CHECK(!v->gpu->stalled);
    v->finish();
}

TEST_CASE("without another thread, pipelines are made on the calling one") {
    if (!test::can_refuse_threads()) {
        test::skip("threads cannot be refused in this build");
        return;
    }
    auto v = Vulkan::open();
    if (!v) return;
    for (int n_allowed : {0, 1}) {
        CAPTURE(n_allowed);
        v->pipelines.reset();
        REQUIRE(vk::Pipelines::create(v->gpu, test::shaders(), {}, 4).get(v->pipelines).ok());
        test::ThreadFailure failure(n_allowed);
        const auto a = v->pipelines->request(vk::PipelineKey{"selftest_rows", 64, {{kRowCount, 2}}, 0, false}),
                   b = v->pipelines->request(vk::PipelineKey{"selftest_rows", 128, {{kRowCount, 4}}, 0, false});
        if (n_allowed == 0) CHECK(v->pipelines->done(a));
        CHECK(v->pipelines->wait(a).ok());
        CHECK(v->pipelines->wait(b).ok());
        CHECK(v->pipelines->get(a) != VK_NULL_HANDLE);
        if (n_allowed == 0) CHECK(failure.n_refused() == 1);  // not asked again
    }
    v->finish();
}

#endif  // AUSPEX_NO_VULKAN
