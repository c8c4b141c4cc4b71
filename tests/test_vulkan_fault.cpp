// A GPU without memory: where a call of the driver or an allocation of the library's own code fails, every public call
// returns a Status, gives back what it took, and works when it is called again.
//
// Driver calls fail through a function table of the test's own, allocations through tests/allocations.h. Calls that
// fail are sampled: the first ones all, then ever fewer.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include "../src/base/guard.h"
#include "../src/engine/session.h"
#include "allocations.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

std::atomic<int64_t> calls_until_fault{kNever};

/// A function of the driver that answers VK_ERROR_OUT_OF_DEVICE_MEMORY when it is its turn.
template <auto kField>
struct Faulty;
template <class... A, VkResult (VKAPI_PTR* VolkDeviceTable::*kField)(A...)>
struct Faulty<kField> {
    static inline VkResult(VKAPI_PTR* real)(A...) = nullptr;
    static VkResult VKAPI_PTR call(A... a) {
        return fails(calls_until_fault) ? VK_ERROR_OUT_OF_DEVICE_MEMORY : real(a...);
    }
    static void put(VolkDeviceTable* t) {
        real = t->*kField;
        t->*kField = call;
    }
};

vk::OpenDetail faulty_driver() {
    vk::OpenDetail detail;
    detail.edit_device = [](VolkDeviceTable* t) {
        Faulty<&VolkDeviceTable::vkAllocateMemory>::put(t);
        Faulty<&VolkDeviceTable::vkCreateBuffer>::put(t);
        Faulty<&VolkDeviceTable::vkBindBufferMemory>::put(t);
        Faulty<&VolkDeviceTable::vkMapMemory>::put(t);
        Faulty<&VolkDeviceTable::vkCreateSemaphore>::put(t);
        Faulty<&VolkDeviceTable::vkCreateCommandPool>::put(t);
        Faulty<&VolkDeviceTable::vkAllocateCommandBuffers>::put(t);
        Faulty<&VolkDeviceTable::vkBeginCommandBuffer>::put(t);
        Faulty<&VolkDeviceTable::vkEndCommandBuffer>::put(t);
        Faulty<&VolkDeviceTable::vkCreateShaderModule>::put(t);
        Faulty<&VolkDeviceTable::vkCreateComputePipelines>::put(t);
        Faulty<&VolkDeviceTable::vkCreateDescriptorPool>::put(t);
        Faulty<&VolkDeviceTable::vkAllocateDescriptorSets>::put(t);
        Faulty<&VolkDeviceTable::vkQueueSubmit>::put(t);
    };
    return detail;
}

/// Which call or allocation fails next; each kind of fault is a counter.
struct Fault {
    const char* name;
    std::atomic<int64_t>& until;
};
std::vector<Fault> faults() {
    std::vector<Fault> all{{"a driver call", calls_until_fault}};
    if (can_tell_own_allocations()) all.push_back({"an allocation", own_allocations_until_fault});
    return all;
}

/// A device whose driver can be made to fail; with `staged`, no call but a copy writes what it holds. Null where there
/// is none; then the test case is skipped.
vk::OpenDeviceRef open_faulty(Device* device, bool staged = false) {
    *device = gpu_device();
    if (!*device) return nullptr;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    vk::OpenDeviceRef opened;
    vk::OpenDetail detail = faulty_driver();
    if (staged) detail.direct_upload = 0;
    const Status s = vk::open_device(options, detail).get(opened);
    REQUIRE_MESSAGE(s.ok(), s.message());
    device->impl()->machine = vk::make_backend(opened);
    return opened;
}

/// Calls with a later and later fault until none is met. What fails must say out_of_memory or no_device; a fault may
/// also go unnoticed, where the library can do without. `check` runs after each. Returns the number of failures.
template <class Call, class Check>
int fail_some(const Fault& fault, const char* what, Call call, Check check) {
    int n = 0;
    for (int64_t i = 0;; i += deep() ? 1 : 1 + i / 6) {
        fault.until = i;
        const Status s = call();
        const bool met = fault.until.exchange(kNever) < 0;
        // The loader reports a driver that runs out of memory when it is opened as one that is not there.
        const bool expected = s.code == Code::out_of_memory || s.code == Code::no_device;
        if (!s.ok() && (!met || !expected)) FAIL_CHECK(what << ", " << fault.name << ' ' << i << ": " << s.message());
        n += !s.ok();
        check(i);
        if (!met) return n;
    }
}

}  // namespace

TEST_CASE("where a GPU's driver or the host has no memory left, opening the device returns a Status") {
    if (!gpu_device()) return;
    DeviceOptions options;
    options.kind = Kind::vulkan;
    const auto open = [&]() -> Status {  // as Device::open() calls it
        try {
            return vk::open_device(options, faulty_driver()).status();
        } catch (...) {
            return status_of_exception();
        }
    };
    for (const Fault& fault : faults()) {
        const int n = fail_some(fault, "open_device", open, [](int64_t) {});
        CHECK_MESSAGE(n > 5, fault.name);
    }
}

TEST_CASE("where a GPU's driver or the host has no memory left, load and create return a Status and hold nothing") {
    Device device;
    const vk::OpenDeviceRef opened = open_faulty(&device);
    if (!opened) return;
    vk::Gpu& gpu = *opened->gpu;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    SessionOptions options;
    options.n_context = 128;
    options.n_ubatch = 16;
    options.draft.source = Draft::mtp;
    options.draft.depth = 2;
    for (const Fault& fault : faults()) {
        CAPTURE(std::string(fault.name));
        uint64_t held = gpu.device_bytes + gpu.host_bytes;
        const auto same = [&](int64_t i) {
            if (gpu.device_bytes + gpu.host_bytes != held)
                FAIL_CHECK("failure " << i << " holds " << gpu.device_bytes + gpu.host_bytes - held << " bytes");
        };
        CHECK(fail_some(
                  fault, "Model::load", [&] { return Model::load(device, bytes).status(); }, same) > 5);
        const Model model = load_model(device, bytes);
        held = gpu.device_bytes + gpu.host_bytes;
        CHECK(fail_some(
                  fault, "Session::create", [&] { return Session::create(model, options).status(); }, same) > 5);
    }
    CHECK(gpu.device_bytes + gpu.host_bytes == 0);
}

/// Calls of a session through `call`, and the text that comes of them.
template <class Call>
static std::vector<Token> text_of(const Model& model, Call call) {
    SessionOptions options;
    options.n_context = 128;
    options.n_ubatch = 16;
    options.draft.source = Draft::mtp;
    options.draft.depth = 2;
    options.draft.n_vocab = 48;
    options.draft.vocab_by_use = true;
    Session session;
    REQUIRE(Session::create(model, options).get(session).ok());
    const std::vector<Token> prompt = tiny_ids(32, 4);  // two steps, each in pieces
    Snapshot snapshot;
    call("sync", [&] { return session.sync(prompt).status(); });
    std::vector<uint32_t> count(model.impl()->plan.n_vocab);
    for (const Token id : prompt) ++count[static_cast<size_t>(id)];
    const Span<const Token> ids = session.impl()->sources.mtp.ids();  // chosen by use, although that failed at first
    CHECK(std::vector<Token>(ids.begin(), ids.end()) ==
          choose_draft_vocab(model.impl()->tokenizer, model.impl()->plan.n_vocab, options.draft.n_vocab, count));
    for (int i = 0; i < 3; ++i) call("next", [&] { return session.next().status(); });
    call("save", [&] { return session.save().get(snapshot); });
    call("next", [&] { return session.next().status(); });
    call("restore", [&] { return session.restore(snapshot); });
    call("next", [&] { return session.next().status(); });
    Session other;
    call("fork", [&] { return session.fork().get(other); });
    call("move_to", [&] { return session.move_to(model).status(); });
    while (other.history().size() < 45) REQUIRE(other.next().ok());
    while (session.history().size() < 60) REQUIRE(session.next().ok());
    CHECK(std::equal(session.history().begin(), session.history().begin() + 45, other.history().begin()));
    return {session.history().begin(), session.history().begin() + 60};
}

TEST_CASE("where memory runs out in a session on a GPU, calls return a Status, and tried again give the same text") {
    Device device;
    const vk::OpenDeviceRef opened = open_faulty(&device, true);
    if (!opened) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(true));
    const Model model = load_model(device, bytes);
    const std::vector<Token> want = text_of(model, [](const char*, auto call) { REQUIRE(call().ok()); });
    for (const Fault& fault : faults()) {
        CAPTURE(std::string(fault.name));
        int n_failure = 0;
        const std::vector<Token> text = text_of(model, [&](const char* what, auto call) {
            for (int64_t i = 0;; i += 1 + i) {
                fault.until = i;
                const Status s = call();
                const bool met = fault.until.exchange(kNever) < 0;
                if (s.ok()) return;
                ++n_failure;
                REQUIRE_MESSAGE((met && s.code == Code::out_of_memory), what << ' ' << i << ": " << s.message());
            }
        });
        CHECK(text == want);
        CHECK(n_failure > 5);
    }
}

namespace {

/// A model and a context of it below the engine, which are given the same calls again and again.
struct Below : ContextRig {
    std::shared_ptr<LoadedModel> model;
    std::unique_ptr<Context> context;
    std::vector<Token> ids = tiny_ids(9, 4);

    explicit Below(const vk::OpenDeviceRef& opened)
        : ContextRig(test_vulkan_model::narrow_of(false)), model(load(*vk::make_backend(opened))) {
        context = ContextRig::context(*model, {}, 128, 16);
    }
    LoopStart start_of(uint32_t n_history) const {
        LoopStart d;
        d.history = Span<const Token>(ids.data(), n_history);
        d.limit = 12;
        return d;
    }
    /// What the device loop adds to a history of one token.
    std::vector<Token> loop_text() {
        std::vector<Token> text;
        DeviceLoop& loop = *context->device_loop();
        REQUIRE(loop.start(start_of(1)).ok());
        for (bool done = false; !done;) {
            REQUIRE(loop.queue(0).ok());
            const auto c = loop.wait();
            REQUIRE_MESSAGE(c.ok(), c.status().message());
            text.insert(text.end(), c.value().tokens.begin(), c.value().tokens.end());
            done = c.value().done;
        }
        return text;
    }
};

}  // namespace

TEST_CASE("a call that fails for want of memory as often as it likes does not wait for what was never submitted") {
    Device device;
    const vk::OpenDeviceRef opened = open_faulty(&device);
    if (!opened) return;
    Below below(opened);
    const Step step = below.step(Span<const Token>(below.ids.data(), 3), 0, true, 1);
    const std::vector<float> want = below.run(*below.context, step);
    opened->gpu->timeout_ns = 20'000'000'000;
    for (int i = 0; i < 7; ++i) {
        calls_until_fault = 0;
        CHECK(below.context->run(step).code == Code::out_of_memory);
        calls_until_fault = kNever;
    }
    REQUIRE_FALSE(opened->gpu->lost.load());
    CHECK(below.run(*below.context, step) == want);
    for (int i = 0; i < 7; ++i) CHECK(below.context->device_loop()->start(below.start_of(4)).ok());  // none is queued
    CHECK(below.context->device_loop()->queue(0).ok());
    CHECK(below.context->device_loop()->wait().ok());
}

TEST_CASE("the device loop clears what a reset could not, and goes on with no other text") {
    Device device;
    const vk::OpenDeviceRef opened = open_faulty(&device);
    if (!opened) return;
    Below below(opened);
    const std::vector<Token> want = below.loop_text();
    CHECK(want.size() == 11);
    below.context->reset();
    below.run(*below.context, below.step(Span<const Token>(below.ids.data() + 1, 7), 0, true, 0));  // another text
    below.context->commit(7);
    calls_until_fault = 0;
    below.context->reset();
    CHECK(calls_until_fault.exchange(0) < 0);
    CHECK(below.context->device_loop()->start(below.start_of(1)).code == Code::out_of_memory);
    calls_until_fault = kNever;
    CHECK(below.context->device_loop()->queue(0).code == Code::bad_argument);  // it did not start
    CHECK(below.loop_text() == want);
}

TEST_CASE("a way of sampling that could not be prepared for want of memory is prepared by the next start") {
    if (!can_tell_own_allocations()) return skip("own allocations cannot be told apart in this build");
    Device device;
    const vk::OpenDeviceRef opened = open_faulty(&device);
    if (!opened) return;
    Below below(opened), other(opened);
    LoopStart d = below.start_of(4);
    for (Below* b : {&below, &other}) REQUIRE(b->context->device_loop()->prepare(1).ok());
    d.sampling.temperature = 1;
    own_allocations_until_fault = 0;
    CHECK_THROWS_AS((void)below.context->device_loop()->start(d), std::bad_alloc);
    own_allocations_until_fault = kNever;
    REQUIRE(below.context->device_loop()->start(d).ok());
    const size_t n = opened->pipelines->size();
    REQUIRE(other.context->device_loop()->start(d).ok());
    CHECK(opened->pipelines->size() == n);
}

#endif  // AUSPEX_NO_VULKAN
