// A device that is lost at any submission: the session moves to another one and goes on with the same text.
#include "fork_rig.h"
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include <filesystem>

#include "../src/engine/model.h"
#include "allocations.h"

using namespace fork_rig;

namespace test_vulkan_move {

std::atomic<int64_t> calls_until_loss{kNever};  ///< submissions, and waiting for them
PFN_vkQueueSubmit real_submit = nullptr;
PFN_vkWaitSemaphores real_wait = nullptr;

VkResult VKAPI_PTR losing_submit(VkQueue queue, uint32_t n, const VkSubmitInfo* info, VkFence fence) {
    return fails(calls_until_loss) ? VK_ERROR_DEVICE_LOST : real_submit(queue, n, info, fence);
}
VkResult VKAPI_PTR losing_wait(VkDevice device, const VkSemaphoreWaitInfo* info, uint64_t ns) {
    return fails(calls_until_loss) ? VK_ERROR_DEVICE_LOST : real_wait(device, info, ns);
}

/// For a session of few submissions.
SessionOptions short_options(int depth, uint32_t run_ahead) {
    SessionOptions o = options_of(depth, run_ahead);
    o.n_context = 128;
    o.n_ubatch = 16;
    return o;
}

/// A device that can be lost, another one, and the CPU, with the same model on each.
struct Rig {
    std::vector<std::byte> bytes = tiny_model(gpu_tiny());
    vk::OpenDeviceRef opened;
    Device losing = gpu_device(), good = gpu_device();
    Model first, second, cpu;

    /// False where there is no GPU; then the test case is skipped.
    bool open() {
        if (!losing) return false;
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDetail detail;
        detail.direct_upload = 0;  // copies are submissions, too
        detail.edit_device = [](VolkDeviceTable* t) {
            real_submit = t->vkQueueSubmit;
            t->vkQueueSubmit = losing_submit;
            real_wait = t->vkWaitSemaphores;
            t->vkWaitSemaphores = losing_wait;
        };
        const Status s = vk::open_device(options, detail).get(opened);
        REQUIRE_MESSAGE(s.ok(), s.message());
        losing.impl()->machine = vk::make_backend(opened);
        first = load_model(losing, bytes);
        second = load_model(good, bytes);
        cpu = load_model(cpu_device(), bytes);
        return true;
    }
    /// Opened again. The driver never knew of the loss.
    void mend() { opened->gpu->lost = false; }
};

/// One short use of a session. A call that loses the device moves the session to `refuge`, and is made again.
struct Use {
    const Model& refuge;
    SessionOptions options;
    Sampling sampling;
    size_t n_prompt = 10;
    std::vector<Token> given = {};  ///< every token that the caller was given
    int n_loss = 0;
    size_t n_moved = 0;  ///< tokens of the history that was moved

    template <class Call>
    void with(Session& session, Call call) {
        Status s = call();
        if (s.code == Code::device_lost) {
            ++n_loss;
            CHECK(session.next(sampling).status().code == Code::device_lost);
            CHECK(history(session) == given);
            n_moved = given.size();
            move(session, refuge);
            CHECK(history(session) == given);
            s = call();
        }
        REQUIRE_MESSAGE(s.ok(), s.message());
    }
    void sync(Session& session, const std::vector<Token>& ids, const std::vector<Mark>& marks = {}) {
        with(session, [&] {
            const Status s = session.sync(ids, marks).status();
            given = history(session);  // as before, or what was asked for
            return s;
        });
        CHECK(given == ids);
    }
    void grow(Session& session, size_t n) {
        while (given.size() < n)
            with(session, [&] {
                Span<const Token> tokens;
                const Status s = session.next(sampling).get(tokens);
                given.insert(given.end(), tokens.begin(), tokens.end());
                return s;
            });
    }
    std::vector<Token> text(const Model& model, int64_t loss_at) {
        given.clear();
        n_loss = 0;
        Session session = test::open(model, options);
        calls_until_loss = loss_at;
        const std::vector<Token> prompt = tiny_ids(n_prompt, 4);
        sync(session, prompt);
        grow(session, n_prompt + 3);
        sync(session, tiny_ids(3, 5));  // parks rows
        sync(session, join(prompt, {1, 2}));
        grow(session, n_prompt + 5);
        calls_until_loss = kNever;
        return {given.begin(), given.begin() + static_cast<std::ptrdiff_t>(n_prompt) + 5};
    }
};

}  // namespace test_vulkan_move

using namespace test_vulkan_move;

TEST_CASE(
    "a device that is lost at any submission or wait: the session moves to another and goes on with the same text") {
    Rig rig;
    if (!rig.open()) return;
    struct Setup {
        int depth;
        uint32_t ahead;
    };
    std::vector<Setup> setups{{kOff, 0}, {2, 2}};
    if (deep()) setups = {{kOff, 0}, {2, 2}, {2, 0}, {kOff, 3}};
    int64_t first = 0;
    for (const Setup& setup : setups) {
        CAPTURE(setup.depth);
        CAPTURE(setup.ahead);
        const SessionOptions options = short_options(setup.depth, setup.ahead);
        Use use{rig.second, options, samplings()[setup.ahead]};
        if (deep()) use.n_prompt = 20;
        const std::vector<Token> want = use.text(rig.second, kNever);
        int n = 0;
        for (int64_t i = first;; i += deep() ? 1 : 7, ++n) {
            CAPTURE(i);
            CHECK(use.text(rig.first, i) == want);
            rig.mend();
            if (use.n_loss == 0) break;
        }
        CHECK(n > 4);
        first = deep() ? 0 : 4;
    }
}

TEST_CASE("whichever call notices that the device is lost, the history is what the calls before made it") {
    Rig rig;
    if (!rig.open()) return;
    const SessionOptions options = short_options(2, 0);
    const std::vector<Token> prompt = tiny_ids(10, 4), other = tiny_ids(20, 5);
    const std::string path = (std::filesystem::temp_directory_path() / say("auspex-", unique_number())).string();
    const std::function<Status(Session&, const Snapshot&)> calls[] = {
        [](Session& s, const Snapshot& snap) { return s.restore(snap); },
        [&](Session& s, const Snapshot&) { return s.load(path.c_str()).status(); },
        [](Session& s, const Snapshot&) { return s.save().status(); },
        [&](Session& s, const Snapshot&) { return s.save(path.c_str()).status(); },
        [](Session& s, const Snapshot&) { return s.fork().status(); },
        [](Session& s, const Snapshot&) { return s.logits().status(); },
        [&](Session& s, const Snapshot&) { return s.sync(other).status(); },
    };
    int n_loss = 0;
    for (size_t c = 0; c < std::size(calls); ++c) {
        CAPTURE(c);
        Status s(Code::device_lost, "");
        for (int64_t i = 0; !s.ok(); i += deep() ? 1 : 5) {
            CAPTURE(i);
            Session session = open(rig.first, options);
            sync(session, prompt);
            Result<Snapshot> snap = session.save();
            REQUIRE(snap.ok());
            REQUIRE(session.save(path.c_str()).ok());
            sync(session, other);
            grow(session, 23);
            const std::vector<Token> before = history(session);
            calls_until_loss = i;
            s = calls[c](session, snap.value());
            calls_until_loss = kNever;
            if (s.ok()) break;
            ++n_loss;
            CHECK(s.code == Code::device_lost);
            const std::vector<Token> after = history(session);
            const bool stays = after == before || (c + 1 == std::size(calls) && after == other);
            CHECK(stays);
            rig.mend();
            Session plain = open(rig.second, options);
            sync(plain, after);
            move(session, rig.second);
            CHECK(history(session) == after);
            CHECK(calls[c](session, snap.value()).ok());
        }
        rig.mend();
    }
    std::filesystem::remove(path);
    CHECK(n_loss > 10);
}

TEST_CASE("from a lost GPU to the CPU: the text is that of a CPU session which is given the history") {
    Rig rig;
    if (!rig.open()) return;
    const SessionOptions options = short_options(2, 2);
    Use use{rig.cpu, options, {}};
    for (int64_t i = 4; i < 80; i += 9) {
        CAPTURE(i);
        Session session = open(rig.first, options), plain = open(rig.cpu, options);
        use.given.clear();
        use.n_loss = 0;
        calls_until_loss = i;
        use.sync(session, tiny_ids(12, 4));
        use.grow(session, 20);
        calls_until_loss = kNever;
        rig.mend();
        if (use.n_loss == 0) break;
        sync(plain, use.n_moved > 12 ? history(session, use.n_moved) : tiny_ids(12, 4));
        grow(plain, 20);
        CHECK(history(session, 20) == history(plain, 20));
    }
}

TEST_CASE("between devices that answer a session takes its rows along, and leaves the old one") {
    Rig rig;
    if (!rig.open()) return;
    const SessionOptions options = short_options(2, 2);
    Session session = open(rig.first, options), plain = open(rig.first, options);
    for (Session* s : {&session, &plain}) {
        sync(*s, tiny_ids(20, 4));
        grow(*s, 24);
    }
    grow(plain, 40);
    const uint64_t held = rig.opened->gpu->device_bytes;
    SyncReport r = move(session, rig.second);
    CHECK(r.rows_computed == 0);
    CHECK(r.rows_reused >= 23);
    CHECK(rig.opened->gpu->device_bytes < held);
    grow(session, 28);
    rig.opened->gpu->lost = true;  // another session noticed
    CHECK(plain.save().status().code == Code::device_lost);
    CHECK(move(plain, rig.second).rows_computed >= 39);
    rig.mend();
    const std::vector<Token> before = history(session);
    r = move(session, rig.cpu);
    CHECK(r.rows_computed == before.size());
    CHECK(history(session) == before);
    grow(session, 40);
    CHECK(history(session, 28) == history(plain, 28));
    r = move(session, rig.first);
    CHECK(r.rows_computed == session.history().size());
    plain = Session();
    session = Session();
    CHECK(rig.opened->gpu->device_bytes < held);
}
#endif
