// Every function of the Vulkan driver that can fail, with each of four errors, in each part of a model's life: the call
// of the library returns a Status, nothing leaks, and the library works afterwards.
#include "driver_shim.h"

#ifndef AUSPEX_NO_VULKAN
#include <chrono>
#include <cstdio>

#include "../src/base/guard.h"
#include "../src/engine/model.h"
#include "vulkan_model.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

enum class Phase { open, load, create, prefill, decode, profile, close };
constexpr Phase kPhases[] = {Phase::open,   Phase::load,    Phase::create, Phase::prefill,
                             Phase::decode, Phase::profile, Phase::close};
std::string name(Phase p) {
    constexpr const char* kNames[] = {"open", "load", "create", "prefill", "decode", "profile", "close"};
    return kNames[int(p)];
}
constexpr VkResult kErrors[] = {VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST,
                                VK_ERROR_INITIALIZATION_FAILED};
/// Tokens of the prompt: in deep mode some run many rows at once.
size_t n_prompt() { return deep() ? 20 : 6; }
size_t n_text() { return n_prompt() + 3; }

/// A device, a model and a session, made and used part by part.
struct Life {
    bool fences = false;  ///< on a device without timeline semaphores
    vk::OpenDeviceRef opened;
    Device device;
    Model model;
    Session session;

    Status run(Phase phase, const std::vector<std::byte>& bytes) {
        switch (phase) {
            case Phase::open: return open();
            case Phase::load: return Model::load(device, bytes).get(model);
            case Phase::create: {
                SessionOptions options;
                options.n_context = 64;
                options.n_ubatch = 16;
                return Session::create(model, options).get(session);
            }
            case Phase::prefill: return session.sync(tiny_ids(n_prompt(), 4)).status();
            case Phase::decode: {
                while (session.history().size() < n_text()) {
                    const Status s = session.next().status();
                    if (!s.ok()) return s;
                }
                return {};
            }
            case Phase::profile: (void)device.pipeline_cache(); return session.profile().status();
            default: close(); return {};
        }
    }
    Status adopt(const vk::OpenDeviceRef& from) {
        opened = from;
        device = cpu_device();
        device.impl()->machine = vk::make_backend(opened);
        return {};
    }
    /// What workers build belongs to the phase that requested it.
    void finish_pipelines() {
        if (opened) (void)opened->pipelines->wait_all();
    }
    void close() {
        session = Session();
        model = Model();
        device = Device();
        opened.reset();
    }

  private:
    Status open() try {
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDetail detail;
        shim_driver(&detail);
        detail.direct_upload = 0;
        detail.timeout_ns = 15'000'000'000;  // llvmpipe compiles in the first submission, which may take 5 s
        if (fences) detail.edit_traits = [](vk::DeviceTraits* t) { t->timeline = false; };
        const Status s = vk::open_device(options, detail).get(opened);
        if (!s.ok()) return s;
        // As on a card: staged uploads, and memory that must be flushed and invalidated.
        vk::DeviceTraits& traits = opened->gpu->traits;
        traits.device_mapped = false;
        for (VkMemoryType& t : traits.memory.memoryTypes)
            t.propertyFlags &= ~VkMemoryPropertyFlags(VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
        return adopt(opened);
    } catch (...) {
        return status_of_exception();
    }
};

/// What a call of the driver may become, and where its error shows.
bool is_expected(const Status& s, VkResult error, Phase phase) {
    if (s.ok()) return true;  // the library can do without
    if (phase == Phase::open && s.code == Code::no_device) return true;
    if (error == VK_ERROR_DEVICE_LOST) return s.code == Code::device_lost;
    if (error == VK_ERROR_INITIALIZATION_FAILED) return s.code == Code::unsupported;
    return s.code == Code::out_of_memory;
}

/// Calls of each function in each phase.
using Counts = std::vector<std::vector<int64_t>>;

struct Calls {
    std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(false));
    std::vector<Token> text;  ///< without a fault
    Counts n_call;            ///< of a life on a new device
    Counts n_warm;            ///< of one on `warm`, which has its pipelines
    vk::OpenDeviceRef warm;   ///< reused where it makes a call: opening and compiling take most of a case
    int n_case = 0, n_failed = 0;
    bool fences = false;

    /// Whole lives without a fault.
    explicit Calls(bool with_fences = false) : fences(with_fences) {
        n_call = count();
        n_warm = count();
    }
    ~Calls() {
        warm.reset();
        CHECK(n_driver_object.load() == 0);
        CHECK(n_driver_pipeline.load() == 0);
    }
    Counts count() {
        Counts counts(std::size(kPhases));
        Life life;
        life.fences = fences;
        for (const Phase p : kPhases) {
            for (DriverCall* c : DriverCall::all()) c->n_call = 0;
            const Status s = p == Phase::open && warm ? life.adopt(warm) : life.run(p, bytes);
            REQUIRE_MESSAGE(s.ok(), name(p) << ": " << s.message());
            life.finish_pipelines();
            if (p == Phase::open) warm = life.opened;
            if (p == Phase::decode) text.assign(life.session.history().begin(), life.session.history().end());
            for (const DriverCall* c : DriverCall::all()) counts[size_t(p)].push_back(c->n_call);
        }
        return counts;
    }

    /// Fails one call of function `i` in one phase, the one at this part of all.
    void fail_in(Phase phase, size_t i, VkResult error, double part) {
        DriverCall* call = DriverCall::all()[i];
        const bool on_warm = n_warm[size_t(phase)][i] > 0;
        const int64_t n = on_warm ? n_warm[size_t(phase)][i] : n_call[size_t(phase)][i];
        const int64_t after = int64_t(part * double(n - 1));
        const std::string what = name(phase) + ", " + call->name + ' ' + vk::result_name(error) + ", call " +
                                 std::to_string(after) + " of " + std::to_string(n);
        CAPTURE(what);
        const auto begin = std::chrono::steady_clock::now();
        const int64_t n_before = n_driver_object;
        {
            Life life;
            life.fences = fences;
            if (on_warm) REQUIRE(life.adopt(warm).ok());
            for (const Phase p : kPhases) {
                if (p == phase) break;
                if (p != Phase::open || !on_warm) REQUIRE(life.run(p, bytes).ok());
                life.finish_pipelines();
            }
            driver_fault.arm(call, error, after);
            const Status s = life.run(phase, bytes);
            life.finish_pipelines();
            CHECK(driver_fault.disarm());
            ++n_case;
            n_failed += !s.ok();
            CHECK_MESSAGE(is_expected(s, error, phase), s.message());
            go_on(life, phase, s, error);
        }
        warm->gpu->lost = false;
        CHECK(n_driver_object.load() == n_before);
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
    }

    /// After the fault: a device that is lost stays lost; otherwise the same call works, and the text is what it was.
    void go_on(Life& life, Phase phase, const Status& failed, VkResult error) {
        if (phase == Phase::close) return;
        if (phase != Phase::open && life.opened->gpu->lost) {
            if (phase >= Phase::prefill) CHECK(life.run(Phase::prefill, bytes).code == Code::device_lost);
            return;
        }
        for (const Phase p : kPhases) {
            if (p < phase || p >= Phase::profile || (p == phase && failed.ok())) continue;
            const Status s = life.run(p, bytes);
            // A pipeline that the driver refuses for another reason than memory is not asked for again.
            if (!s.ok() && error == VK_ERROR_INITIALIZATION_FAILED && s.text == failed.text) return;
            CHECK_MESSAGE(s.ok(), name(p) << " afterwards: " << s.message());
            if (!s.ok()) return;
        }
        if (phase < Phase::profile)
            CHECK(std::equal(text.begin(), text.end(), life.session.history().begin(), life.session.history().end()));
    }
};

}  // namespace

TEST_CASE(
    "whatever function of a driver fails, in whatever phase, with whatever error: a Status, no leak, and it goes on") {
    if (!gpu_device()) return;
    Calls calls;
    size_t turn = 0;
    // Later ones come with a fault: a device whose extensions cannot be listed takes fences.
    const size_t n_function = calls.n_call[0].size();
    for (const Phase phase : kPhases)
        for (size_t i = 0; i < n_function; ++i) {
            const int64_t n = calls.n_call[size_t(phase)][i];
            if (n == 0) continue;
            if (!deep()) {
                if (++turn % 7 == 0) calls.fail_in(phase, i, kErrors[turn / 7 % 4], double(turn / 7 % 3) / 2);
                continue;
            }
            for (const VkResult error : kErrors)
                for (int part = 0; part < std::min<int64_t>(n, 3); ++part) calls.fail_in(phase, i, error, part / 2.0);
        }
    std::printf("%d cases in %d functions of the driver: %d gave a Status, the others succeeded all the same\n",
                calls.n_case, int(n_function), calls.n_failed);
    CHECK(calls.n_case > 10);
}

TEST_CASE("without timeline semaphores, each function of fences that fails gives a Status, no leak, and it goes on") {
    if (!gpu_device()) return;
    Calls calls(true);
    size_t turn = 0;
    std::string seen;
    for (size_t i = 0; i < DriverCall::all().size(); ++i) {
        const std::string function = DriverCall::all()[i]->name;
        CHECK_MESSAGE((function.find("Semaphore") == std::string::npos || calls.n_call[0][i] == 0), function);
        if (function.find("Fence") == std::string::npos) continue;
        bool once = false;
        for (const Phase phase : kPhases) {
            const int64_t n = calls.n_call[size_t(phase)][i];
            if (n == 0 || (once && !deep())) continue;
            once = true;
            seen += function + ' ';
            for (const VkResult error : kErrors)
                if (deep() || error == kErrors[turn % 4]) calls.fail_in(phase, i, error, 0.5);
            ++turn;
        }
    }
    for (const char* f : {"vkCreateFence", "vkResetFences", "vkGetFenceStatus", "vkWaitForFences"})
        CHECK_MESSAGE(seen.find(f) != std::string::npos, std::string(f));
    std::printf("%d cases in 4 functions of fences: %d gave a Status\n", calls.n_case, calls.n_failed);
}

TEST_CASE("what a call of the driver that failed left in its handle is not destroyed") {
    if (!gpu_device()) return;
    REQUIRE(Life().run(Phase::open, {}).ok());  // all functions are known
    int n_met = 0;
    for (const DriverCall* c : DriverCall::all()) {
        const std::string function = c->name;
        CAPTURE(function);
        if (function.find("vkCreate") != 0 && function != "vkAllocateMemory") continue;
        {
            Life life;
            driver_fault.arm(c, VK_ERROR_OUT_OF_HOST_MEMORY, 0);
            const Status s = life.run(Phase::open, {});
            n_met += driver_fault.disarm();
            CHECK(is_expected(s, VK_ERROR_OUT_OF_HOST_MEMORY, Phase::open));
        }
        CHECK(n_driver_object.load() == 0);
    }
    CHECK(n_met >= 10);
}

namespace {

/// A text that the device loop has begun, of a narrow model.
struct Looping {
    ContextRig rig{test_vulkan_model::narrow_of(false)};
    std::shared_ptr<LoadedModel> model;
    std::unique_ptr<Context> context;

    explicit Looping(const vk::OpenDeviceRef& device)
        : model(rig.load(*vk::make_backend(device))), context(rig.context(*model, {}, 128, 16)) {
        const std::vector<Token> ids = tiny_ids(4, 4);
        LoopStart d;
        d.history = ids;
        d.limit = 100;
        rig.run(*context, Span<const Token>(ids.data(), 3), 0, false, 0);
        REQUIRE(loop().start(d).ok());
    }
    DeviceLoop& loop() const { return *context->device_loop(); }
};

}  // namespace

TEST_CASE("a mark of time that the driver gives late leaves the time of its cycle unknown, and the text goes on") {
    if (!gpu_device()) return;
    Life life;
    REQUIRE(life.run(Phase::open, {}).ok());
    if (life.opened->gpu->traits.timestamp_bits == 0) return skip("needs a device with timestamps");
    Looping text(life.opened);
    for (int i = 0; i < 4; ++i) {
        CAPTURE(i);
        REQUIRE(text.loop().queue(0).ok());
        const bool late = i == 1 || i == 2;  // the beginning of one cycle, the end of another
        if (late)
            for (const DriverCall* c : DriverCall::all())
                if (std::string(c->name) == "vkGetQueryPoolResults") driver_fault.arm(c, VK_NOT_READY, i - 1);
        const auto c = text.loop().wait();
        REQUIRE_MESSAGE(c.ok(), c.status().message());
        CHECK(c.value().tokens.size() == 1);
        if (late) CHECK(driver_fault.disarm());
        CHECK((c.value().us > 0) == !late);
    }
}

namespace {

/// A device's counter, which begins anew at one of the queries. All in ticks.
struct Counter {
    PFN_vkGetQueryPoolResults real = nullptr;
    int n_query = 0, resets_at = 0;
    uint64_t value = 0;  ///< at the first query
    uint64_t begin = 0;  ///< of the real one, at the first query and where it begins anew
    int n_late = 0;      ///< queries that are not ready yet
} counter;

VkResult VKAPI_PTR counted_results(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes, void* out,
                                   VkDeviceSize stride, VkQueryResultFlags flags) {
    const VkResult r = counter.real(d, pool, first, n, bytes, out, stride, flags);
    const uint64_t now = load<uint64_t>(out);
    const int i = counter.n_query++;
    if (i == 0) counter.begin = now;
    if (i == counter.resets_at) {
        counter.begin = now;
        counter.value = 1;
    }
    const uint64_t value = counter.value + (now - counter.begin);
    std::memcpy(out, &value, sizeof value);
    return r;
}

VkResult VKAPI_PTR late_results(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes, void* out,
                                VkDeviceSize stride, VkQueryResultFlags flags) {
    if (counter.n_late-- > 0) return VK_NOT_READY;
    return counter.real(d, pool, first, n, bytes, out, stride, flags);
}

}  // namespace

TEST_CASE("where a device's counter of time begins anew, the time of that cycle is unknown, and of no other") {
    if (!gpu_device()) return;
    Life life;
    REQUIRE(life.run(Phase::open, {}).ok());
    vk::Gpu& gpu = *life.opened->gpu;
    if (gpu.traits.timestamp_bits == 0) return skip("needs a device with timestamps");
    const auto real = gpu.vk.vkGetQueryPoolResults;
    gpu.vk.vkGetQueryPoolResults = counted_results;
    gpu.traits.timestamp_period_ns = 1;
    struct Case {
        uint32_t bits;
        uint64_t value;
    };
    // With 36 bits, of which three quarters have passed, it looks as if the counter had wrapped around after 17 s,
    // longer than Life waits.
    for (const Case& t : {Case{64, uint64_t{1} << 50}, Case{36, uint64_t{3} << 34}}) {
        CAPTURE(t.bits);
        gpu.traits.timestamp_bits = t.bits;
        counter = Counter();
        counter.real = real;
        counter.value = t.value;
        counter.resets_at = 3;  // the end of the second cycle
        Looping text(life.opened);
        for (int i = 0; i < 4; ++i) {
            CAPTURE(i);
            REQUIRE(text.loop().queue(0).ok());
            const auto c = text.loop().wait();
            REQUIRE_MESSAGE(c.ok(), c.status().message());
            CHECK((c.value().us > 0) == (i != 1));
        }
        CHECK(counter.n_query == 8);
    }
}

TEST_CASE("a profile waits for a mark of time that the driver gives late") {
    if (!gpu_device()) return;
    const std::vector<std::byte> bytes = tiny_model(test_vulkan_model::narrow_of(false));
    Life life;
    for (const Phase p : {Phase::open, Phase::load, Phase::create, Phase::prefill}) REQUIRE(life.run(p, bytes).ok());
    if (life.opened->gpu->traits.timestamp_bits == 0) return skip("needs a device with timestamps");
    counter = Counter();
    counter.real = std::exchange(life.opened->gpu->vk.vkGetQueryPoolResults, late_results);
    counter.n_late = 1;
    const Status s = life.run(Phase::profile, bytes);
    CHECK_MESSAGE(s.ok(), s.message());
}

#endif  // AUSPEX_NO_VULKAN
