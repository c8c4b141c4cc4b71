// A device that hangs, one that is lost without a word, a device that is slow, and a system without threads: the
// process goes on.
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

// The driver's waiting, replaced. `n_left`: time-outs until what is waited for is reached; below 0: never.
struct Hang {
    bool on = false, advancing = false;
    bool lost = false;  ///< submissions are accepted and do not run, waits succeed, and the counter is `counter`
    int n_wait = 0, n_left = -1, n_destroyed = 0;
    uint64_t counter = 0;
    PFN_vkWaitSemaphores wait = nullptr;
    PFN_vkGetSemaphoreCounterValue value = nullptr;
    PFN_vkWaitForFences wait_fence = nullptr;
    PFN_vkGetFenceStatus status = nullptr;
    PFN_vkQueueSubmit submit = nullptr;
} hang;

/// True if the wait times out.
bool times_out(uint64_t ns) {
    ++hang.n_wait;
    if (ns > 1000000000) FAIL_CHECK("a wait of ", ns, " ns on a hung device");
    if (hang.n_left > 0)
        --hang.n_left;
    else if (hang.n_left == 0)
        return false;
    return true;
}

VkResult VKAPI_PTR lost_submit(VkQueue q, uint32_t n, const VkSubmitInfo* info, VkFence f) {
    return hang.lost ? VK_SUCCESS : hang.submit(q, n, info, f);
}
VkResult VKAPI_PTR hung_wait(VkDevice d, const VkSemaphoreWaitInfo* info, uint64_t ns) {
    if (hang.lost) return VK_SUCCESS;
    if (!hang.on) return hang.wait(d, info, ns);
    return times_out(ns) ? VK_TIMEOUT : hang.wait(d, info, UINT64_MAX);
}
VkResult VKAPI_PTR hung_value(VkDevice d, VkSemaphore s, uint64_t* value) {
    if (hang.lost) {
        *value = hang.counter;
        return VK_SUCCESS;
    }
    if (!hang.on) return hang.value(d, s, value);
    *value = hang.advancing ? ++hang.counter : 0;
    return VK_SUCCESS;
}
VkResult VKAPI_PTR hung_wait_fence(VkDevice d, uint32_t n, const VkFence* f, VkBool32 all, uint64_t ns) {
    if (hang.lost) return VK_SUCCESS;
    if (!hang.on) return hang.wait_fence(d, n, f, all, ns);
    return times_out(ns) ? VK_TIMEOUT : hang.wait_fence(d, n, f, all, UINT64_MAX);
}
/// Advancing: one fence more is found signalled each time the fences are looked at.
VkResult VKAPI_PTR hung_status(VkDevice d, VkFence f) {
    if (hang.lost) return VK_SUCCESS;
    if (!hang.on) return hang.status(d, f);
    return hang.advancing && ++hang.counter % 2 != 0 ? VK_SUCCESS : VK_NOT_READY;
}
void VKAPI_PTR count_memory(VkDevice, VkDeviceMemory, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_buffer(VkDevice, VkBuffer, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_pool(VkDevice, VkCommandPool, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_semaphore(VkDevice, VkSemaphore, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_fence(VkDevice, VkFence, const VkAllocationCallbacks*) { ++hang.n_destroyed; }
void VKAPI_PTR count_pipeline(VkDevice, VkPipeline, const VkAllocationCallbacks*) { ++hang.n_destroyed; }

vk::OpenDetail hanging(uint64_t timeout_ms, bool fences = false) {
    hang = Hang();
    vk::OpenDetail detail;
    detail.timeout_ns = timeout_ms * 1000000;
    if (fences) detail.edit_traits = [](vk::DeviceTraits* t) { t->timeline = false; };
    detail.edit_device = [](VolkDeviceTable* t) {
        hang.wait = t->vkWaitSemaphores;
        hang.value = t->vkGetSemaphoreCounterValue;
        hang.wait_fence = t->vkWaitForFences;
        hang.status = t->vkGetFenceStatus;
        hang.submit = t->vkQueueSubmit;
        t->vkQueueSubmit = lost_submit;
        t->vkWaitSemaphores = hung_wait;
        t->vkGetSemaphoreCounterValue = hung_value;
        t->vkWaitForFences = hung_wait_fence;
        t->vkGetFenceStatus = hung_status;
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
    gpu.vk.vkDestroyFence = count_fence;
    gpu.vk.vkDestroyPipeline = count_pipeline;
}

double seconds_since(std::chrono::steady_clock::time_point t) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

namespace {

void give_up(bool fences) {
    auto v = Vulkan::open(hanging(80, fences));
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

}  // namespace

TEST_CASE("a device that hangs is given up after the time-out, and nothing that it may still use is freed") {
    for (const bool fences : {false, true}) {
        CAPTURE(fences);
        give_up(fences);
    }
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
        device->gpu->timeout_ns = 80000000;
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
    for (const bool fences : {false, true}) {
        CAPTURE(fences);
        auto v = Vulkan::open(hanging(80, fences));
        if (!v) return;
        {
            // Six times the slices of one time-out; three times with fences, which must not run out.
            const int n = fences ? int(vk::Timeline::kFences) : 100, n_left = fences ? 24 : 50;
            vk::Timeline timeline;
            REQUIRE(vk::Timeline::create(v->gpu).get(timeline).ok());
            for (int i = 0; i < n; ++i) REQUIRE(timeline.submit(Span<const VkCommandBuffer>()).ok());
            hang.on = hang.advancing = true;
            hang.n_left = n_left;
            CHECK(timeline.wait(uint64_t(n)).ok());
            CHECK(hang.n_wait == n_left + 1);
            hang.on = false;
        }
        CHECK(!v->gpu->stalled);
        v->finish();
    }
}

TEST_CASE("time-outs that the driver reports before the time has passed do not add up to a lost device") {
    for (const bool fences : {false, true}) {
        CAPTURE(fences);
        auto v = Vulkan::open(hanging(8000, fences));
        if (!v) return;
        {
            vk::Timeline timeline;
            REQUIRE(vk::Timeline::create(v->gpu).get(timeline).ok());
            REQUIRE(timeline.submit(Span<const VkCommandBuffer>()).ok());
            hang.on = true;
            hang.n_left = 50;
            CHECK(timeline.wait(1).ok());
            CHECK(hang.n_wait == 51);
            hang.on = false;
        }
        CHECK(!v->gpu->stalled);
        v->finish();
    }
}

TEST_CASE("a semaphore whose value nothing signals is a lost device, although waits for it succeed") {
    auto v = Vulkan::open(hanging(80));
    if (!v) return;
    if (!v->gpu->traits.timeline) return test::skip("needs timeline semaphores");
    {
        vk::Timeline timeline;
        REQUIRE(vk::Timeline::create(v->gpu).get(timeline).ok());
        REQUIRE(timeline.submit(Span<const VkCommandBuffer>()).ok());
        REQUIRE(timeline.wait(1).ok());
        hang.lost = true;
        hang.counter = UINT64_MAX;
        CHECK(timeline.submit(Span<const VkCommandBuffer>()).ok());
        const Status s = timeline.wait(2);
        CHECK(s.code == Code::device_lost);
        CHECK_MESSAGE(s.text.find("has a value that nothing signals") != std::string::npos, s.text);
        CHECK(timeline.done(2).status().code == Code::device_lost);
        CHECK(timeline.submit(Span<const VkCommandBuffer>()).status().code == Code::device_lost);
        CHECK(v->gpu->lost);
        CHECK_FALSE(v->gpu->stalled.load());
    }
    hang.lost = false;
    v->finish();
}

TEST_CASE("a cycle that a lost device did not run is an error, although each call of the driver succeeds") {
    auto probe = Vulkan::open();
    if (!probe) return;
    probe->finish();
    for (const bool fences : {false, true}) {
        CAPTURE(fences);
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDeviceRef device;
        REQUIRE(vk::open_device(options, hanging(8000, fences)).get(device).ok());
        {
            test::ContextRig rig(test_vulkan_model::tiny_of(true));
            std::shared_ptr<LoadedModel> model = rig.load(*vk::make_backend(device));
            std::unique_ptr<Context> context = rig.context(*model, {}, 128, 16);
            const std::vector<Token> ids = test::tiny_ids(4, 3);
            rig.run(*context, Span<const Token>(ids.data(), 3), 0, false, 0);
            LoopStart start;
            start.history = ids;
            start.limit = 100;
            DeviceLoop& loop = *context->device_loop();
            REQUIRE(loop.start(start).ok());
            REQUIRE(loop.queue(0).ok());
            REQUIRE(loop.wait().ok());
            hang.lost = true;
            hang.counter = 1000;  // as if all was done
            REQUIRE(loop.queue(0).ok());
            CHECK(loop.wait().status().code == Code::device_lost);
            CHECK(device->gpu->lost);
            CHECK(loop.queue(0).code == Code::device_lost);
        }
        device.reset();
        hang.lost = false;
    }
}

TEST_CASE("where another thread was told that the device is lost, a wait that times out does not wait on") {
    auto v = Vulkan::open(hanging(80));
    if (!v) return;
    {
        vk::Timeline timeline;
        REQUIRE(vk::Timeline::create(v->gpu).get(timeline).ok());
        REQUIRE(timeline.submit(Span<const VkCommandBuffer>()).ok());
        REQUIRE(timeline.wait(1).ok());
        hang.on = v->gpu->lost = true;
        CHECK(timeline.wait(1).code == Code::device_lost);
        CHECK(hang.n_wait == 1);
        CHECK_FALSE(v->gpu->stalled.load());  // what a lost device used may be freed
    }
    hang.on = false;
    v->finish();
}

TEST_CASE("fences are used again in a ring: every value is reached in its turn, and none is asked for twice") {
    vk::OpenDetail detail;
    detail.edit_traits = [](vk::DeviceTraits* t) { t->timeline = false; };
    auto v = Vulkan::open(detail);
    if (!v) return;
    {
        vk::Timeline timeline;
        REQUIRE(vk::Timeline::create(v->gpu).get(timeline).ok());
        CHECK(timeline.wait(7).ok());  // nothing was submitted
        for (uint64_t i = 1; i <= 3 * vk::Timeline::kFences + 5; ++i) {
            REQUIRE(timeline.submit(Span<const VkCommandBuffer>()).value() == i);
            if (i % 10 == 0) CHECK(timeline.wait(i - 9).ok());
        }
        CHECK(timeline.wait(timeline.last()).ok());
        for (const uint64_t value : {uint64_t{1}, timeline.last() - vk::Timeline::kFences, timeline.last()})
            CHECK(timeline.done(value).value());
        CHECK_FALSE(timeline.done(timeline.last() + 1).value());
        vk::Timeline moved = std::move(timeline);
        CHECK_FALSE(bool(timeline));
        CHECK(moved.submit(Span<const VkCommandBuffer>()).ok());
    }
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
