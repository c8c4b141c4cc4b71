// What a host application may replace: where a model's bytes come from, and the threads that compute.
#include "../src/base/os.h"
#include "allocations.h"
#include "support.h"
#include "thread_failure.h"
#include "tiny.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

using namespace auspex;
using namespace test;

namespace {

std::vector<Token> text_of(const Model& model) {
    SessionOptions options;
    options.n_context = 64;
    Session session;
    REQUIRE(Session::create(model, options).get(session).ok());
    REQUIRE(session.sync(tiny_ids(12, 3)).ok());
    while (session.history().size() < 24) REQUIRE(session.next().ok());
    return {session.history().begin(), session.history().begin() + 24};
}

/// A file that the host has open for reading, and removes afterwards.
struct HostFile {
    std::string path = "auspex-test-embed.bin";
    intptr_t file = -1;

    explicit HostFile(const std::vector<std::byte>& bytes) {
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
#if defined(_WIN32)
        file = reinterpret_cast<intptr_t>(CreateFileA(path.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr,
                                                      OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr));
#else
        file = ::open(path.c_str(), O_RDONLY);
#endif
        REQUIRE(file >= 0);
    }
    HostFile(const HostFile&) = delete;
    HostFile& operator=(const HostFile&) = delete;
    ~HostFile() {
        close();
        std::remove(path.c_str());
    }
    void close() {
        if (file < 0) return;
#if defined(_WIN32)
        CloseHandle(reinterpret_cast<HANDLE>(file));
#else
        ::close(static_cast<int>(file));
#endif
        file = -1;
    }
};

std::vector<std::byte> padded(size_t before, const std::vector<std::byte>& bytes, size_t after) {
    std::vector<std::byte> all(before, std::byte{0xA5});
    all.insert(all.end(), bytes.begin(), bytes.end());
    all.insert(all.end(), after, std::byte{0x5A});
    return all;
}

/// An allocator that counts, for a device. It has no gigabyte to give: a sanitizer ends the program at a size that no
/// machine has.
struct Heap {
    std::atomic<int64_t> n_held{0};
    Allocator allocator() {
        return {[](void* user, size_t bytes, size_t alignment) {
                    void* p = bytes < size_t{1} << 30 ? allocate_aligned(bytes, alignment) : nullptr;
                    if (p) static_cast<Heap*>(user)->n_held += static_cast<int64_t>(bytes);
                    return p;
                },
                [](void* user, void* p, size_t bytes, size_t) {
                    static_cast<Heap*>(user)->n_held -= static_cast<int64_t>(bytes);
                    free_aligned(p);
                },
                this};
    }
    Device device() {
        DeviceOptions options;
        options.kind = Kind::cpu;
        options.n_thread = 1;
        options.allocator = allocator();
        return open_device(options);
    }
};

/// Gives a model in pieces of any size; `fail_at`: the offset from which on it gives nothing.
struct Pieces {
    const std::vector<std::byte>& bytes;
    uint64_t fail_at = UINT64_MAX, next = 0;
    size_t claim = 0;  ///< added to what it says
    Random random{7};

    FileReader reader() {
        return {bytes.size(), [this](uint64_t at, void* to, size_t n) -> size_t {
                    CHECK(at == next);
                    CHECK(at + n <= bytes.size());
                    if (at >= fail_at) return 0;
                    n = std::min<size_t>({n, size_t{1} + random.below(90000), static_cast<size_t>(fail_at - at)});
                    std::memcpy(to, bytes.data() + at, n);
                    next = at + n;
                    return n + claim;
                }};
    }
};

/// A job system that starts a thread for each task, or runs them one after the other.
struct Jobs {
    std::atomic<uint32_t> n_run{0};
    bool together = true;

    JobSystem system() { return {run, this}; }
    static void run(void* user, uint32_t n, void (*task)(void* context, uint32_t i), void* context) {
        Jobs& jobs = *static_cast<Jobs*>(user);
        ++jobs.n_run;
        std::vector<std::thread> threads;
        for (uint32_t i = n; i-- > 0;) {
            if (jobs.together)
                threads.emplace_back(task, context, i);
            else
                task(context, i);
        }
        for (std::thread& t : threads) t.join();
    }
};

}  // namespace

TEST_CASE("a model within a larger file loads by its descriptor, which may be closed, mapped or copied") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Heap heap;
    const Device device = heap.device();
    const std::vector<Token> want = text_of(load_model(device, bytes));
    for (const size_t offset : {size_t{0}, size_t{8}, size_t{4096}, size_t{70000}, size_t{4099}, size_t{12345}}) {
        CAPTURE(offset);
        HostFile open(padded(offset, bytes, 77));
        for (const bool copy : {false, true}) {
            LoadOptions options;
            options.copy_file = copy;
            const int64_t before = heap.n_held;
            Model model;
            const Status s = Model::load(device, FileRange{open.file, offset, bytes.size()}, options).get(model);
            REQUIRE_MESSAGE(s.ok(), s.message());
            const bool copied = heap.n_held - before >= static_cast<int64_t>(bytes.size());
            CHECK(copied == (copy || offset % 8 != 0));
            if (copy) open.close();
            if (copy || offset == 4096) CHECK(text_of(model) == want);
            CHECK(model.info().file_bytes == bytes.size());
        }
    }
    CHECK(heap.n_held.load() == 0);
    HostFile open(padded(16, bytes, 0));
    const Model to_the_end = Model::load(device, FileRange{open.file, 16, 0}).value();
    open.close();
    CHECK(text_of(to_the_end) == want);
}

TEST_CASE("a range that is not in the file, or no file, is an error that names both") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    const Device device = cpu_device();
    HostFile open(bytes);
    const uint64_t n = bytes.size();
    const FileRange beyond[] = {
        {open.file, n + 1, 0}, {open.file, 0, n + 1}, {open.file, 1, n}, {open.file, 8, UINT64_MAX}};
    for (const FileRange& range : beyond) {
        const Status s = Model::load(device, range).status();
        CHECK(s.code == Code::bad_argument);
        const char* says = range.offset > n ? "the file has only " : "bytes were asked for, but it has ";
        CHECK_MESSAGE(s.text.find(says) != std::string::npos, s.text);
    }
    CHECK(Model::load(device, FileRange{open.file, n, 0}).status().code == Code::io_error);
    CHECK(Model::load(device, FileRange{open.file, 8, 0}).status().code == Code::bad_file);
    CHECK(Model::load(device, FileRange{open.file, 0, n / 2}).status().code == Code::bad_file);
    CHECK(Model::load(device, FileRange()).status().code == Code::io_error);
#if !defined(_WIN32)
    if (sizeof(intptr_t) > 4) {  // beyond an int, although its low bits are a descriptor
        const FileRange range{static_cast<intptr_t>(uint64_t{1} << 32) + open.file, 0, 0};
        CHECK(Model::load(device, range).status().code == Code::bad_argument);
    }
#endif
    CHECK(Model::load(Device(), FileRange{open.file, 0, 0}).status().code == Code::bad_argument);
#if defined(__unix__)
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    const Status s = Model::load(device, FileRange{pipe_ends[0], 0, 0}).status();
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("a device or a pipe") != std::string::npos);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
#endif
}

TEST_CASE("a model loads by a function that reads pieces of any size, from front to back") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Heap heap;
    const Device device = heap.device();
    Pieces pieces{bytes};
    bool reading = false;
    LoadOptions options;
    options.progress = [&](const char* what, float) { return reading |= std::string(what) == "read", true; };
    Model model;
    const Status s = Model::load(device, pieces.reader(), options).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(pieces.next == bytes.size());
    CHECK(reading);
    CHECK(text_of(model) == text_of(load_model(device, bytes)));
    model = Model();
    CHECK(heap.n_held.load() == 0);
}

TEST_CASE("a reader that fails, lies or is cancelled is an error, and nothing is kept") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    Heap heap;
    const Device device = heap.device();
    for (const uint64_t at : {uint64_t{0}, uint64_t{bytes.size() / 2}, uint64_t{bytes.size() - 1}}) {
        Pieces pieces{bytes, at};
        const Status s = Model::load(device, pieces.reader()).status();
        CHECK(s.code == Code::io_error);
        CHECK_MESSAGE(s.text.find("gave nothing at byte " + std::to_string(pieces.next)) != std::string::npos, s.text);
        CHECK(heap.n_held.load() == 0);
    }
    Pieces liar{bytes};
    liar.claim = bytes.size();
    CHECK(Model::load(device, liar.reader()).status().code == Code::bad_argument);
    CHECK(heap.n_held.load() == 0);
    LoadOptions options;
    options.progress = [](const char*, float) { return false; };
    Pieces cancelled{bytes};
    CHECK(Model::load(device, cancelled.reader(), options).status().code == Code::cancelled);
    CHECK(cancelled.next == 0);
    CHECK(heap.n_held.load() == 0);
    CHECK(Model::load(device, FileReader()).status().code == Code::bad_argument);
    Pieces pieces{bytes};
    FileReader longer = pieces.reader();
    longer.bytes = UINT64_MAX / 2;
    CHECK(Model::load(device, longer).status().code == Code::out_of_memory);
    longer.bytes = UINT64_MAX;
    const std::string too_long = Model::load(device, longer).status().text;
    CHECK(too_long.find("expected at most") != std::string::npos);
    CHECK((too_long.find("64-bit build") == std::string::npos) == (sizeof(size_t) == 8));
    CHECK(heap.n_held.load() == 0);
    const std::vector<std::byte> shard = tiny_shards({}, 2)[0];
    Pieces first{shard};
    CHECK_FALSE(Model::load(device, first.reader()).ok());
    CHECK(heap.n_held.load() == 0);
}

TEST_CASE("with a job system the library starts no thread and gives the same text, on the CPU and on a GPU") {
    const std::vector<std::byte> bytes = tiny_qwen35(smallest());
    for (const Kind kind : {Kind::cpu, Kind::vulkan}) {
        if (kind == Kind::vulkan && !gpu_device()) return;
        DeviceOptions options;
        options.kind = kind;
        options.n_thread = 3;
        const std::vector<Token> want = text_of(load_model(open_device(options), bytes));
        Jobs jobs;
        options.jobs = jobs.system();
        CHECK(text_of(load_model(open_device(options), bytes)) == want);
        if (can_refuse_threads()) {
            options.n_thread = 1;
            const Device device = open_device(options);  // a driver may start threads here
            ThreadFailure failure(0);
            CHECK(text_of(load_model(device, bytes)) == want);
            CHECK(failure.n_refused() == 0);
        }
        CHECK(jobs.n_run.load() > (kind == Kind::cpu ? 12u : 0u));
    }
}

TEST_CASE("a job system that cannot run all tasks at the same time is refused when the device is opened") {
    Jobs jobs;
    jobs.together = false;
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.jobs = jobs.system();
    Status s = Device::open(options).status();
    CHECK(s.code == Code::bad_argument);
    CHECK(s.text.find("n_thread is 0") != std::string::npos);
    options.n_thread = 2;
    s = Device::open(options).status();
    CHECK(s.code == Code::bad_argument);
    CHECK_MESSAGE(s.text.find("did not meet") != std::string::npos, s.text);
    options.n_thread = 1;
    CHECK(Device::open(options).ok());
}
