// The C interface from inside the test program: structs of other ages, handles in any order, forks, files, plans.
// Sampling is in tests/test_capi_sampling.cpp, chats in tests/test_capi_chat.cpp; tests/capi_client.c is a client in C,
// tests/test_capi.py one in Python.
#include "allocations.h"
#include "capi_rig.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include <doctest/doctest.h>

using namespace capi_rig;

namespace {

/// A struct of this size and its bytes behind it, as a program of another age has them.
template <class T>
struct Aged {
    alignas(T) unsigned char bytes[4096] = {};
    explicit Aged(uint32_t size) { std::memcpy(bytes, &size, sizeof size); }
    T* get() { return reinterpret_cast<T*>(bytes); }
};

/// Sizes of a struct that is read: older, newer, and never set.
template <class T, class Call>
void check_sizes(uint32_t smaller, Call call) {
    for (const uint32_t size : {smaller, static_cast<uint32_t>(sizeof(T)), static_cast<uint32_t>(sizeof(T) + 64)}) {
        Aged<T> aged(size);
        CHECK(call(aged.get()) == AUSPEX_OK);
    }
    for (const uint32_t size : {0u, 4u, 9u, 4104u, 0xFFFFFFF8u}) {
        Aged<T> aged(size);
        CHECK(call(aged.get()) == AUSPEX_BAD_ARGUMENT);
    }
    Aged<T> newer(sizeof(T) + 64);
    newer.bytes[sizeof(T) + 63] = 1;
    CHECK(call(newer.get()) == AUSPEX_BAD_ARGUMENT);
    CHECK(call(nullptr) == AUSPEX_OK);
}

/// Sizes of a struct that is filled: nothing is written beyond, and what the library does not know is 0.
template <class T, class Call>
void check_filled(Call call) {
    for (const uint32_t size : {8u, static_cast<uint32_t>(sizeof(T)), static_cast<uint32_t>(sizeof(T) + 64)}) {
        Aged<T> aged(size);
        std::fill(aged.bytes + 4, aged.bytes + sizeof aged.bytes, static_cast<unsigned char>(0xA5));
        CHECK(call(aged.get()) == AUSPEX_OK);
        CHECK(aged.get()->struct_size == size);
        CHECK(aged.bytes[size] == 0xA5);
        if (size > sizeof(T)) CHECK(aged.bytes[size - 1] == 0);
    }
    for (const uint32_t size : {0u, 4u, 12u, 0xFFFFFFF8u}) {
        Aged<T> aged(size);
        CHECK(call(aged.get()) == AUSPEX_BAD_ARGUMENT);
    }
}

}  // namespace

TEST_CASE("C: structs of older and newer programs work, and those that were never set are refused") {
    Rig rig;
    auspex_session* s = rig.session();
    rig.sync(s, tiny_ids(8, 1));
    check_sizes<auspex_device_options>(8, [](const auspex_device_options* o) {
        auspex_device* device = nullptr;
        const auspex_code code = auspex_device_open(o, &device, nullptr);
        auspex_device_free(device);
        return code;
    });
    check_sizes<auspex_load_options>(8, [&](const auspex_load_options* o) {
        auspex_model* model = nullptr;
        const auspex_code code =
            auspex_model_load_memory(rig.device, rig.bytes.data(), rig.bytes.size(), o, &model, nullptr);
        auspex_model_free(model);
        return code;
    });
    check_sizes<auspex_session_options>(16, [&](const auspex_session_options* o) {
        auspex_plan* plan = nullptr;
        const auspex_code code = auspex_plan_model(rig.model, o, &plan, nullptr);
        auspex_plan_free(plan);
        return code;
    });
    check_sizes<auspex_sampling>(16, [&](const auspex_sampling* o) {
        int32_t ids[AUSPEX_MAX_TOKENS];
        size_t n = 0;
        return auspex_session_next(s, o, ids, AUSPEX_MAX_TOKENS, &n, nullptr);
    });
    check_filled<auspex_model_info>([&](auspex_model_info* o) { return auspex_model_get_info(rig.model, o, nullptr); });
    check_filled<auspex_stats>([&](auspex_stats* o) { return auspex_session_get_stats(s, o, nullptr); });
    check_filled<auspex_sync_report>([&](auspex_sync_report* o) {
        return auspex_session_sync(s, tiny_ids(8, 1).data(), 8, nullptr, 0, o, nullptr);
    });
    auspex_sampling sampling;
    int32_t ids[AUSPEX_MAX_TOKENS];
    size_t n = 0;
    CHECK(auspex_sampling_init(&sampling, sizeof sampling) == AUSPEX_OK);
    sampling.reserved = 1;
    CHECK(auspex_session_next(s, &sampling, ids, AUSPEX_MAX_TOKENS, &n, nullptr) == AUSPEX_BAD_ARGUMENT);
    auspex_session_options o;
    CHECK(auspex_session_options_init(&o, 4) == AUSPEX_BAD_ARGUMENT);
    CHECK(auspex_session_options_init(nullptr, sizeof o) == AUSPEX_BAD_ARGUMENT);
    auspex_session_free(s);
}

TEST_CASE("C: handles may be freed in any order, and nothing of the application's memory is kept") {
    struct Heap {
        std::atomic<int64_t> n_held{0}, n_call{0};
    } heap;
    auto options = cleared<auspex_device_options>();
    options.kind = AUSPEX_KIND_CPU;
    options.n_thread = 1;
    options.allocator_user = &heap;
    options.allocate = [](size_t bytes, size_t alignment, void* user) {
        ++static_cast<Heap*>(user)->n_call;
        static_cast<Heap*>(user)->n_held += static_cast<int64_t>(bytes);
        return test::allocate_aligned(bytes, alignment);
    };
    options.release = [](void* p, size_t bytes, size_t, void* user) {
        static_cast<Heap*>(user)->n_held -= static_cast<int64_t>(bytes);
        test::free_aligned(p);
    };
    const std::vector<std::byte> bytes = tiny_qwen35();
    int order[] = {0, 1, 2, 3};
    do {
        Ok ok;
        auspex_device* device = nullptr;
        auspex_model* model = nullptr;
        auspex_session* session = nullptr;
        auspex_stream* stream = nullptr;
        ok(auspex_device_open(&options, &device, ok));
        ok(auspex_model_load_memory(device, bytes.data(), bytes.size(), nullptr, &model, ok));
        auto small = cleared<auspex_session_options>();
        small.n_context = 64;
        ok(auspex_session_create(model, &small, &session, ok));
        ok(auspex_stream_create(model, nullptr, 0, 0, &stream, ok));
        const std::vector<int32_t> ids = tiny_ids(4, 1);
        for (const int what : order) {
            if (what == 0) auspex_device_free(device);
            if (what == 1) auspex_model_free(model);
            if (what == 2) auspex_session_free(session);
            if (what == 3) auspex_stream_free(stream);
            if (what != 2 && order[3] == 2) ok(auspex_session_sync(session, ids.data(), 4, nullptr, 0, nullptr, ok));
        }
        CHECK(heap.n_held == 0);
    } while (std::next_permutation(order, order + 4));
    CHECK(heap.n_call >= 24);
    auspex_device_free(nullptr);
    auspex_model_free(nullptr);
    auspex_session_free(nullptr);
    auspex_stream_free(nullptr);
}

TEST_CASE("C: devices are listed, those with them that cannot be used, and the callback may cancel") {
    struct Seen {
        std::vector<std::string> names;
        int32_t answer = 0;
        bool reasons = true;
    } seen;
    const auspex_on_device on_device = [](const auspex_device_entry* d, void* user) {
        Seen& s = *static_cast<Seen*>(user);
        s.names.push_back(d->name);
        s.reasons = s.reasons && d->struct_size == sizeof *d && (d->code == AUSPEX_OK) == (*d->text == 0) &&
                    (d->kind == AUSPEX_KIND_CPU ? d->gpu == 0 : d->gpu > 0 || d->code != AUSPEX_OK);
        return s.answer;
    };
    Ok ok;
    auto options = cleared<auspex_device_options>();
    options.kind = AUSPEX_KIND_CPU;
    options.n_thread = 1;
    ok(auspex_device_list(&options, on_device, &seen, ok));
    REQUIRE(seen.names.size() == 1);
    CHECK(seen.names[0].compare(0, 4, "cpu ") == 0);
    options.kind = AUSPEX_KIND_BEST;
    ok(auspex_device_list(&options, on_device, &seen, ok));
    CHECK(seen.names.size() >= 3);  // without Vulkan, the first says so
    options.kind = AUSPEX_KIND_VULKAN;
    options.gpu = 1000;
    auspex_error error = AUSPEX_ERROR_INIT;
    auspex_device* device = nullptr;
    const auspex_code code = auspex_device_open(&options, &device, &error);
    if (code != AUSPEX_NO_DEVICE) {  // none at all
        CHECK(std::string(error.text).rfind("there is no Vulkan device 999, counted from 0; the devices are 0: ", 0) ==
              0);
        CHECK(std::strstr(error.text, ". In C, gpu counts from 1: it is 1000.") != nullptr);
    }
    CHECK(code == error.code);
    CHECK(device == nullptr);
    CHECK(seen.reasons);
    seen.answer = 1;
    CHECK(auspex_device_list(&options, on_device, &seen, ok) == AUSPEX_CANCELLED);
    CHECK(auspex_device_list(&options, nullptr, nullptr, ok) == AUSPEX_BAD_ARGUMENT);
}

TEST_CASE("C: a model loads by a descriptor and by a function, and a job system computes it") {
    Rig rig;
    struct Host {
        const std::vector<std::byte>& bytes;
        int n_run = 0;
    } host{rig.bytes};
    Ok ok;
    auto options = cleared<auspex_device_options>();
    options.kind = AUSPEX_KIND_CPU;
    options.n_thread = 2;
    options.max_submit_ms = 10;
    auspex_device* device = nullptr;
    options.barriers_only = 2;
    CHECK(auspex_device_open(&options, &device, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(ok.error.text) == "barriers_only is 2, expected 0..1");
    options.barriers_only = 1;
    options.jobs_user = &host;
    options.run_jobs = [](uint32_t n, void (*task)(void*, uint32_t), void* context, void* user) {
        ++static_cast<Host*>(user)->n_run;
        std::vector<std::thread> threads;
        for (uint32_t i = 1; i < n; ++i) threads.emplace_back(task, context, i);
        task(context, 0);
        for (std::thread& t : threads) t.join();
    };
    ok(auspex_device_open(&options, &device, ok));
    auto reader = cleared<auspex_reader>();
    reader.n_bytes = rig.bytes.size();
    reader.user = &host;
    reader.read = [](uint64_t at, void* to, size_t n, void* user) -> size_t {
        n = std::min<size_t>(n, 100000);
        std::memcpy(to, static_cast<Host*>(user)->bytes.data() + at, n);
        return n;
    };
    auspex_model* model = nullptr;
    ok(auspex_model_load_reader(device, &reader, nullptr, &model, ok));
    int32_t ids[AUSPEX_MAX_TOKENS];
    CHECK(host.n_run > 0);
    auspex_session* session = nullptr;
    ok(auspex_session_create(model, nullptr, &session, ok));
    ok(auspex_session_sync(session, tiny_ids(4, 1).data(), 4, nullptr, 0, nullptr, ok));
    size_t n = 0;
    ok(auspex_session_next(session, nullptr, ids, AUSPEX_MAX_TOKENS, &n, ok));
    auspex_session_free(session);
    auspex_model_free(model);
#if defined(__unix__)
    std::FILE* file = std::tmpfile();
    REQUIRE(file);
    std::fputs("12345678", file);
    REQUIRE(std::fwrite(rig.bytes.data(), 1, rig.bytes.size(), file) == rig.bytes.size());
    std::fflush(file);
    ok(auspex_model_load_file(device, fileno(file), 8, rig.bytes.size(), nullptr, &model, ok));
    std::fclose(file);
    auspex_model_free(model);
#endif
    CHECK(auspex_model_load_file(device, -1, 0, 0, nullptr, &model, ok) == AUSPEX_IO_ERROR);
    reader.reserved = 1;
    CHECK(auspex_model_load_reader(device, &reader, nullptr, &model, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(ok.error.text) == "auspex_reader.reserved is 1, expected 0");
    CHECK(auspex_model_load_reader(device, nullptr, nullptr, &model, ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(ok.error.text).find("reader is null") == 0);
    auspex_device_free(device);
}

TEST_CASE("C: forks, moves, files and snapshots go on with the same text") {
    Rig rig;
    const std::vector<int32_t> ids = tiny_ids(40, 2);
    auspex_session *s = rig.session(), *fork = nullptr, *other = rig.session();
    rig.sync(s, ids);
    rig.ok(auspex_session_fork(s, &fork, rig.ok));
    const std::string path = "test_capi.session";
    std::remove(path.c_str());
    rig.ok(auspex_session_save(s, path.c_str(), "note", 4, rig.ok));
    auspex_snapshot *taken = nullptr, *copy = nullptr;
    rig.ok(auspex_snapshot_take(s, &taken, rig.ok));
    const std::vector<int32_t> want = rig.next(s, 8);
    CHECK(rig.next(fork, 8) == want);

    auto info = cleared<auspex_file_info>();
    rig.ok(auspex_session_load(other, path.c_str(), &info, rig.ok));
    CHECK((info.n_token == 40 && info.note_bytes == 4 && info.recovered == 0));
    CHECK(rig.next(other, 8) == want);
    char note[4];
    size_t n = 0;
    CHECK(auspex_read_session_file(path.c_str(), nullptr, note, 3, &n, nullptr) == AUSPEX_BUFFER_TOO_SMALL);
    info.note_bytes = 0;
    CHECK(auspex_read_session_file(path.c_str(), &info, note, 3, &n, nullptr) == AUSPEX_BUFFER_TOO_SMALL);
    CHECK(info.note_bytes == 4);
    rig.ok(auspex_read_session_file(path.c_str(), &info, note, 4, &n, rig.ok));
    CHECK(std::string(note, n) == "note");
    std::remove(path.c_str());

    const void* bytes = nullptr;
    uint64_t n_token = 0;
    rig.ok(auspex_snapshot_bytes(taken, &bytes, &n, &n_token, rig.ok));
    CHECK(n_token == 40);
    rig.ok(auspex_snapshot_from_bytes(bytes, n, &copy, rig.ok));
    rig.ok(auspex_snapshot_restore(copy, other, rig.ok));
    CHECK(rig.next(other, 8) == want);

    auspex_snapshot* later = nullptr;
    rig.ok(auspex_snapshot_take(s, &later, rig.ok));
    rig.ok(auspex_snapshot_bytes(later, &bytes, &n, &n_token, rig.ok));
    CHECK(n_token == 48);
    rig.ok(auspex_snapshot_restore(later, other, rig.ok));
    CHECK(rig.next(other, 4) == rig.next(s, 4));
    auspex_snapshot_free(later);

    auspex_model* again = nullptr;
    rig.ok(auspex_model_load_memory(rig.device, rig.bytes.data(), rig.bytes.size(), nullptr, &again, rig.ok));
    auto report = cleared<auspex_sync_report>();
    rig.sync(other, ids);
    rig.ok(auspex_session_move_to(other, again, &report, rig.ok));
    CHECK(report.rows_reused == 40);
    auspex_model_free(again);
    CHECK(rig.next(other, 8) == want);
    for (auspex_session* each : {s, fork, other}) auspex_session_free(each);
    auspex_snapshot_free(taken);
    auspex_snapshot_free(copy);
}

TEST_CASE("C: a plan lists what C++ plans, and options arrive") {
    Rig rig;
    auto options = cleared<auspex_session_options>();
    options.n_context = 200;
    options.kv_k = AUSPEX_KV_Q8_0;
    options.windows = "all:64+4";
    options.checkpoint_bytes = AUSPEX_NO_CHECKPOINTS;
    auspex::SessionOptions same;
    same.n_context = 200;
    same.kv_k = auspex::KvType::q8_0;
    same.windows = auspex::parse_windows("all:64+4").value();
    same.checkpoint_bytes = 0;
    const auspex::Model model = load_model(cpu_device(), rig.bytes);
    const auspex::MemoryPlan want = auspex::Session::plan(model, same).value();
    auspex_plan* plan = nullptr;
    rig.ok(auspex_plan_model(rig.model, &options, &plan, rig.ok));
    auto totals = cleared<auspex_plan_totals>();
    rig.ok(auspex_plan_get_totals(plan, &totals, rig.ok));
    CHECK(totals.session_bytes == want.session_bytes);
    CHECK(totals.weight_bytes == want.weight_bytes);
    CHECK(totals.n_item == want.items.size());
    auto item = cleared<auspex_plan_item>();
    for (uint32_t i = 0; i < totals.n_item; ++i) {
        rig.ok(auspex_plan_get_item(plan, i, &item, rig.ok));
        CHECK((item.what == want.items[i].what && item.bytes == want.items[i].bytes));
    }
    CHECK(auspex_plan_get_item(plan, totals.n_item, &item, nullptr) == AUSPEX_NOT_FOUND);
    CHECK(auspex_plan_get_alternative(plan, 0, &item, nullptr) == AUSPEX_NOT_FOUND);
    auspex_plan_free(plan);
    options.windows = "x";
    CHECK(auspex_plan_model(rig.model, &options, &plan, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(plan == nullptr);
    options.windows = nullptr;
    options.kv_v = 17;
    CHECK(auspex_plan_model(rig.model, &options, &plan, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::strstr(rig.ok.error.text, "kv_v is 17") != nullptr);
    CHECK(auspex_plan_file(rig.device, "no-such-file.gguf", nullptr, nullptr, &plan, nullptr) == AUSPEX_NOT_FOUND);
}

TEST_CASE("C: a plan that does not fit lists the alternatives that C++ lists") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Ok ok;
    auto device_options = cleared<auspex_device_options>();
    device_options.kind = AUSPEX_KIND_CPU;
    device_options.n_thread = 1;
    device_options.memory_limit_bytes = 8 << 20;
    auspex_device* device = nullptr;
    auspex_model* model = nullptr;
    auspex_plan* plan = nullptr;
    ok(auspex_device_open(&device_options, &device, ok));
    ok(auspex_model_load_memory(device, bytes.data(), bytes.size(), nullptr, &model, ok));
    auto options = cleared<auspex_session_options>();
    options.n_context = 65536;
    ok(auspex_plan_model(model, &options, &plan, ok));
    auto totals = cleared<auspex_plan_totals>();
    ok(auspex_plan_get_totals(plan, &totals, ok));
    CHECK(totals.fits == 0);
    CHECK(totals.limit_bytes == 8 << 20);

    auspex::DeviceOptions same_device;
    same_device.kind = auspex::Kind::cpu;
    same_device.n_thread = 1;
    same_device.memory_limit_bytes = 8 << 20;
    auspex::SessionOptions same;
    same.n_context = 65536;
    const auspex::Model same_model = load_model(auspex::Device::open(same_device).value(), bytes);
    const auspex::MemoryPlan want = auspex::Session::plan(same_model, same).value();
    REQUIRE(totals.n_alternative == want.alternatives.size());
    uint32_t n_fits = 0;
    for (uint32_t i = 0; i < totals.n_alternative; ++i) {
        auto item = cleared<auspex_plan_item>();
        ok(auspex_plan_get_alternative(plan, i, &item, ok));
        CHECK(item.what == want.alternatives[i].what);
        CHECK(item.bytes == want.alternatives[i].total_bytes);
        CHECK(item.fits == (item.bytes <= 8 << 20 ? 1 : 0));
        CHECK(item.layer == -1);
        n_fits += item.fits != 0;
    }
    CHECK(n_fits > 0);
    CHECK(n_fits < totals.n_alternative);
    auto item = cleared<auspex_plan_item>();
    CHECK(auspex_plan_get_alternative(plan, totals.n_alternative, &item, ok) == AUSPEX_NOT_FOUND);
    auspex_plan_free(plan);
    auspex_model_free(model);
    auspex_device_free(device);
}

TEST_CASE("C: a mark beyond the history is refused with both numbers") {
    Rig rig;
    auspex_session* s = rig.session();
    const std::vector<int32_t> ids = tiny_ids(10, 1);
    const auspex_mark mark = {9999, 0, 0};
    CHECK(auspex_session_sync(s, ids.data(), ids.size(), &mark, 1, nullptr, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::string(rig.ok.error.text).find("mark 0 is at row 9999, the history has 10 tokens") == 0);
    auspex_session_free(s);
}

TEST_CASE("C: another handle, a freed one and a second call at a time are refused") {
    Rig rig;
    auspex_session* s = rig.session();
    auspex_session* wrong = reinterpret_cast<auspex_session*>(rig.model);
    CHECK(auspex_session_sync(wrong, nullptr, 0, nullptr, 0, nullptr, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::strstr(rig.ok.error.text, "another kind") != nullptr);
    auspex_session_cancel(wrong);
    auspex_session_free(wrong);  // not one: stays
    auspex_session_free(s);

    struct Inside {
        auspex_session* session = nullptr;
        auspex_code code = AUSPEX_OK;
        bool throws = false;
    } inside;
    auto options = cleared<auspex_session_options>();
    options.n_context = 64;
    options.progress_user = &inside;
    options.progress = [](const char*, float, void* user) -> int32_t {
        Inside& in = *static_cast<Inside*>(user);
        if (in.throws) throw 1;
        in.code = auspex_session_sync(in.session, nullptr, 0, nullptr, 0, nullptr, nullptr);
        return 0;
    };
    rig.ok(auspex_session_create(rig.model, &options, &inside.session, rig.ok));
    const std::vector<int32_t> ids = tiny_ids(10, 1);
    rig.sync(inside.session, ids);
    CHECK(inside.code == AUSPEX_BAD_ARGUMENT);
    inside.throws = true;
    const std::vector<int32_t> others = tiny_ids(10, 2);
    CHECK(auspex_session_sync(inside.session, others.data(), 10, nullptr, 0, nullptr, rig.ok) == AUSPEX_BAD_ARGUMENT);
    CHECK(std::strstr(rig.ok.error.text, "threw") != nullptr);
    inside.throws = false;
    rig.sync(inside.session, others);
    auspex_session_free(inside.session);
}

TEST_CASE("C: cancel at any time stops what runs and nothing that comes later") {
    Rig rig;
    auspex_session* s = rig.session(512);
    const std::vector<int32_t> ids = tiny_ids(480, 3);
    std::atomic<bool> stop{false};
    std::thread other([&] {
        Random random(7);
        while (!stop) {
            auspex_session_cancel(s);
            std::this_thread::sleep_for(std::chrono::microseconds(random.next() % 1000));
        }
    });
    int n_cancelled = 0;
    const auto count = [&](auspex_code code) {
        REQUIRE((code == AUSPEX_OK || code == AUSPEX_CANCELLED));
        n_cancelled += code == AUSPEX_CANCELLED;
    };
    for (int i = 0; i < 50; ++i) {
        count(auspex_session_sync(s, nullptr, 0, nullptr, 0, nullptr, nullptr));
        count(auspex_session_sync(s, ids.data(), ids.size(), nullptr, 0, nullptr, nullptr));
        int32_t next[AUSPEX_MAX_TOKENS];
        size_t n = 0, before = 0, after = 0;
        (void)auspex_session_history(s, nullptr, 0, &before, nullptr);
        if (before == 0) continue;
        count(auspex_session_next(s, nullptr, next, AUSPEX_MAX_TOKENS, &n, nullptr));
        (void)auspex_session_history(s, nullptr, 0, &after, nullptr);
        CHECK(after == before + n);  // cancelled or not, no token is lost
    }
    stop = true;
    other.join();
    CHECK(n_cancelled > 0);
    rig.sync(s, ids);
    auspex_session* plain = rig.session(512);
    rig.sync(plain, ids);
    CHECK(rig.next(s, 8) == rig.next(plain, 8));
    auspex_session_free(plain);
    auspex_session_free(s);
}

TEST_CASE("C: where an allocation fails, calls say that memory ran out, and give nothing that is empty") {
    Rig rig;
    auspex_session* session = rig.session();
    auspex_error error = AUSPEX_ERROR_INIT;
    const auto all = [&](const char* what, auto call) {
        REQUIRE_MESSAGE(call() == AUSPEX_OK, what << ": " << error.text);
        for (int64_t i = 0;; ++i) {
            allocations_until_fault = i;
            const auspex_code code = call();
            if (allocations_until_fault.exchange(kNever) >= 0) break;
            if (code != AUSPEX_OUT_OF_MEMORY)
                FAIL_CHECK(what << ", failure " << i << ": " << code << " " << error.text);
        }
    };
    char text[2000];
    size_t n = 0;
    all("device_name", [&] { return auspex_device_name(rig.device, text, sizeof text, &n, &error); });
    all("device_report", [&] { return auspex_device_report(rig.device, text, sizeof text, &n, &error); });
    const char* const stops[] = {"a stop string that does not fit a small string"};
    all("stream_create", [&] {
        auspex_stream* stream = nullptr;
        const auspex_code code = auspex_stream_create(rig.model, stops, 1, 0, &stream, &error);
        auspex_stream_free(stream);
        return code;
    });
    all("reply_create", [&] {
        auspex_reply* reply = nullptr;
        const auspex_code code = auspex_reply_create(0, nullptr, 0, &reply, &error);
        auspex_reply_free(reply);
        return code;
    });
    const std::string json = R"({"messages": [{"role": "user", "content": "hi"}]})";
    auto options = cleared<auspex_chat_options>();
    options.max_tokens = 2;
    options.stops = stops;
    options.n_stops = 1;
    all("chat", [&] {
        const auto ignore = [](const auspex_event*, void*) { return int32_t{0}; };
        return auspex_chat(session, json.data(), json.size(), &options, ignore, nullptr, &error);
    });
    auspex_session_free(session);
}
