// Every allocation and every thread start fails in turn: each public call returns a Status, leaks nothing, and works
// when it is called again.
//
// The test program's operator new counts here. It fails only while a Fault is armed.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "tiny.h"

#if defined(__linux__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define AUSPEX_TEST_THREADS 1
#include <dlfcn.h>
#include <pthread.h>
#endif

namespace {

constexpr int64_t kNever = INT64_MAX;
/// Allocations (or thread starts) until one fails; after that one all succeed again.
std::atomic<int64_t> g_until_fault{kNever}, g_until_thread_fault{kNever};
std::atomic<int64_t> g_held{0};  ///< blocks that were allocated and not freed

bool fails(std::atomic<int64_t>& until) {
    return until.load(std::memory_order_relaxed) != kNever && until.fetch_sub(1) == 0;
}

void* allocate(size_t n, size_t alignment) {
    if (fails(g_until_fault)) return nullptr;
    const size_t bytes = n == 0 ? 1 : n;
    void* p = nullptr;
    if (alignment <= alignof(std::max_align_t)) {
        p = std::malloc(bytes);
    } else {
        p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    if (p) g_held.fetch_add(1, std::memory_order_relaxed);
    return p;
}
void* allocate_or_throw(size_t n, size_t alignment) {
    if (void* p = allocate(n, alignment)) return p;
    throw std::bad_alloc();
}
void release(void* p) {
    if (!p) return;
    g_held.fetch_sub(1, std::memory_order_relaxed);
    std::free(p);
}

}  // namespace

void* operator new(size_t n) { return allocate_or_throw(n, 1); }
void* operator new[](size_t n) { return allocate_or_throw(n, 1); }
void* operator new(size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<size_t>(a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return allocate(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }

#ifdef AUSPEX_TEST_THREADS
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*entry)(void*),
                              void* context) {
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const Create real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    return fails(g_until_thread_fault) ? EAGAIN : real(thread, attributes, entry, context);
}
#endif

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
        const int64_t held = g_held.load();
        bool met = false;
        {
            until = i;
            const Status s = call();
            met = until.exchange(kNever) < 0;
            if (met && s.code != Code::out_of_memory)
                FAIL_CHECK(what << ", failure " << i << ": " << (s.ok() ? "ok" : s.message()));
            if (!met && !s.ok()) FAIL_CHECK(what << " without a failure: " << s.message());
        }
        if (g_held.load() != held) FAIL_CHECK(what << ", failure " << i << ": leaks " << g_held.load() - held);
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
    CHECK(fail_each(g_until_fault, "Device::open", open) > 3);
    const Device device = open_device(options);
    const auto load = [&] { return Model::load(device, bytes).status(); };
    REQUIRE(load().ok());  // tables that live as long as the program are made now
    CHECK(fail_each(g_until_fault, "Model::load", load) > 50);
    const auto plan = [&] {
        return Session::plan(device, "no-such-file.gguf").status().code == Code::not_found
                   ? Status()
                   : Status(Code::out_of_memory, "");
    };
    CHECK(fail_each(g_until_fault, "Session::plan of a missing file", plan) > 0);
}

TEST_CASE("where an allocation fails, encode, decode, render and streams return a Status and leak nothing") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    const std::string text = "the cat, the hat and the text of a longer line than fits anywhere without memory";
    std::vector<Token> ids;
    CHECK(fail_each(g_until_fault, "encode", [&] { return model.encode(text).status(); }) > 3);
    REQUIRE(model.encode(text).get(ids).ok());
    CHECK(fail_each(g_until_fault, "decode", [&] { return model.decode(ids).status(); }) > 0);
    const char* json = R"({"messages": [{"role": "user", "content": "a question of more than a few characters"}]})";
    CHECK(fail_each(g_until_fault, "from_json", [&] { return ChatRequest::from_json(json).status(); }) > 5);
    ChatRequest request;
    REQUIRE(ChatRequest::from_json(json).get(request).ok());
    for (ChatStyle style : {ChatStyle::chatml, ChatStyle::qwen35, ChatStyle::qwen36_unsloth})
        CHECK(fail_each(g_until_fault, "render", [&] { return render_chat(request, style).status(); }) > 3);
    const char* reply = "<think>\nhm hm hm hm hm hm hm\n</think>\n\nan answer that is longer than a small string";
    CHECK(fail_each(g_until_fault, "parse_reply", [&] { return parse_reply(reply, true).status(); }) > 0);
    CHECK(fail_each(g_until_fault, "parse_windows", [&] { return parse_windows("all:64,3:full").status(); }) > 0);
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
    CHECK(fail_each(g_until_fault, "create", create) > 10);
    Session plain, session;
    REQUIRE(Session::create(model, options).get(plain).ok());
    REQUIRE(plain.sync(prompt).ok());
    while (plain.history().size() < 40) REQUIRE(plain.next().ok());
    // The calls keep what they have allocated, so that only their answers are looked at here.
    const auto fail_in_turn = [&](const char* what, auto call) {
        for (int64_t i = 0;; ++i) {
            g_until_fault = i;
            const Status s = call();
            const bool met = g_until_fault.exchange(kNever) < 0;
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

#ifdef AUSPEX_TEST_THREADS
TEST_CASE("where a thread cannot be started, opening a device returns a Status and leaks nothing") {
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 4;
    const auto open = [&] { return Device::open(options).status(); };
    REQUIRE(open().ok());
    CHECK(fail_each(g_until_thread_fault, "Device::open with 4 threads", open) == 3);
}
#endif
