// Every allocation and every thread start fails in turn: each public call returns a Status, leaks nothing, and works
// when it is called again.
//
// Allocations fail through tests/allocations.h, thread starts through tests/thread_failure.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "allocations.h"
#include "thread_failure.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

/// Calls `call` with the first allocation failing, then the second and so on, until none fails. Each failure must come
/// back as out_of_memory; after it nothing may be held that was not held before. Steps grow so that a call of thousands
/// of allocations is covered by some hundred failures. Returns the number of failures.
template <class Call>
int fail_each(std::atomic<int64_t>& until, const char* what, Call call) {
    int n = 0;
    for (int64_t i = 0;; i += 1 + i / 24, ++n) {
        const int64_t held = n_held.load();
        bool met = false;
        {
            until = i;
            const Status s = call();
            met = until.exchange(kNever) < 0;
            if (met && s.code != Code::out_of_memory)
                FAIL_CHECK(what << ", failure " << i << ": " << (s.ok() ? "ok" : s.message()));
            if (!met && !s.ok()) FAIL_CHECK(what << " without a failure: " << s.message());
        }
        if (n_held.load() != held) FAIL_CHECK(what << ", failure " << i << ": leaks " << n_held.load() - held);
        if (!met) return n;
    }
}

}  // namespace

TEST_CASE("where an allocation fails, opening a device and loading a model return a Status and leak nothing") {
    const std::vector<std::byte> bytes = tiny_model();
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 2;
    const auto open = [&] { return Device::open(options).status(); };
    REQUIRE(open().ok());
    CHECK(fail_each(allocations_until_fault, "Device::open", open) > 3);
    const Device device = open_device(options);
    const auto load = [&] { return Model::load(device, bytes).status(); };
    REQUIRE(load().ok());  // tables that live as long as the program are made now
    CHECK(fail_each(allocations_until_fault, "Model::load", load) > 50);
    const auto plan = [&] {
        return Session::plan(device, "no-such-file.gguf").status().code == Code::not_found
                   ? Status()
                   : Status(Code::out_of_memory, "");
    };
    CHECK(fail_each(allocations_until_fault, "Session::plan of a missing file", plan) > 0);
}

TEST_CASE("where an allocation fails, encode, decode, render and streams return a Status and leak nothing") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    const std::string text = "the cat, the hat and the text of a longer line than fits anywhere without memory";
    std::vector<Token> ids;
    CHECK(fail_each(allocations_until_fault, "encode", [&] { return model.encode(text).status(); }) > 3);
    REQUIRE(model.encode(text).get(ids).ok());
    CHECK(fail_each(allocations_until_fault, "decode", [&] { return model.decode(ids).status(); }) > 0);
    const char* json = R"({"messages": [{"role": "user", "content": "a question of more than a few characters"}]})";
    CHECK(fail_each(allocations_until_fault, "from_json", [&] { return ChatRequest::from_json(json).status(); }) > 5);
    ChatRequest request;
    REQUIRE(ChatRequest::from_json(json).get(request).ok());
    for (ChatStyle style : {ChatStyle::chatml, ChatStyle::qwen35, ChatStyle::qwen36_unsloth})
        CHECK(fail_each(allocations_until_fault, "render", [&] { return render_chat(request, style).status(); }) > 3);
    const char* reply = "<think>\nhm hm hm hm hm hm hm\n</think>\n\nan answer that is longer than a small string";
    CHECK(fail_each(allocations_until_fault, "parse_reply", [&] { return parse_reply(reply, true).status(); }) > 0);
    CHECK(fail_each(allocations_until_fault, "parse_windows", [&] { return parse_windows("all:64,3:full").status(); }) >
          0);
}

TEST_CASE("where an allocation fails, a session returns a Status, leaks nothing and goes on to the same text") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    SessionOptions options;
    options.n_context = 128;
    options.draft.source = Draft::mtp;
    options.draft.depth = 2;
    const std::vector<Token> prompt = tiny_ids(20, 4);
    const auto create = [&] { return Session::create(model, options).status(); };
    REQUIRE(create().ok());
    CHECK(fail_each(allocations_until_fault, "create", create) > 10);
    Session plain, session;
    REQUIRE(Session::create(model, options).get(plain).ok());
    REQUIRE(plain.sync(prompt).ok());
    while (plain.history().size() < 40) REQUIRE(plain.next().ok());
    // The calls keep what they have allocated, so that only their answers are looked at here.
    const auto fail_in_turn = [&](const char* what, auto call) {
        for (int64_t i = 0;; ++i) {
            allocations_until_fault = i;
            const Status s = call();
            const bool met = allocations_until_fault.exchange(kNever) < 0;
            if (s.ok()) return;
            CHECK_MESSAGE(s.code == Code::out_of_memory, what << ", failure " << i << ": " << s.message());
            REQUIRE(met);
        }
    };
    REQUIRE(Session::create(model, options).get(session).ok());
    fail_in_turn("sync", [&] { return session.sync(prompt).status(); });
    while (session.history().size() < 30) fail_in_turn("next", [&] { return session.next().status(); });
    Snapshot snapshot;
    fail_in_turn("save", [&] { return session.save().get(snapshot); });
    fail_in_turn("restore", [&] { return session.restore(snapshot); });
    while (session.history().size() < 40) fail_in_turn("next", [&] { return session.next().status(); });
    CHECK(std::equal(plain.history().begin(), plain.history().begin() + 40, session.history().begin()));
}

TEST_CASE("where a thread cannot be started, opening a device returns a Status and leaks nothing") {
    if (!can_refuse_threads()) return skip("thread starts cannot be intercepted here");
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 4;
    const auto open = [&] { return Device::open(options).status(); };
    REQUIRE(open().ok());
    CHECK(fail_each(threads_until_fault, "Device::open with 4 threads", open) == 3);
}
