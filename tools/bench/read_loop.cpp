#include "read_loop.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "bench.h"

namespace cli {
namespace {

/// With chains that any compiler keeps in registers: an array of them may stay in memory, which halves the speed.
uint64_t sum_of(const uint64_t* p, const uint64_t* end) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (; end - p >= 8; p += 8) {
        a += p[0] + p[4];
        b += p[1] + p[5];
        c += p[2] + p[6];
        d += p[3] + p[7];
    }
    for (; p < end; ++p) a += *p;
    return a + b + c + d;
}

}  // namespace

Status ReadLoop::open(uint64_t bytes, uint32_t n_thread) {
    constexpr uint64_t kMin = 16u << 20, kMax = 1u << 30;
    const size_t n_word = static_cast<size_t>(std::clamp(bytes, kMin, kMax) / sizeof(uint64_t));
    pages_.reserve(n_word * sizeof(uint64_t));
    const Status s = block_.take(pages_.allocator(), n_word * sizeof(uint64_t), "the read loop", false);
    if (!s.ok()) return s;
    std::fill_n(block_.as<uint64_t>(), n_word, uint64_t{1});
    n_thread_ = n_thread;
    return {};
}

Result<double> ReadLoop::run() const {
    const uint64_t* data = block_.as<uint64_t>();
    const size_t n_word = static_cast<size_t>(block_.size() / sizeof(uint64_t));
    std::atomic<uint64_t> sum{0};
    Times times;
    const Status s = measure(1, &times, [&] {
        const auto part = [&](uint32_t i) {
            sum += sum_of(data + n_word * i / n_thread_, data + n_word * (i + 1) / n_thread_);
        };
        std::vector<std::thread> threads;
        for (uint32_t i = 1; i < n_thread_; ++i) threads.emplace_back(part, i);
        part(0);
        for (std::thread& t : threads) t.join();
        return Status();
    });
    if (!s.ok()) return s;
    if (sum.load() != n_word) return Status(Code::io_error, "the memory gave back other bytes than were written to it");
    return double(n_word) * sizeof(uint64_t) / times.min() / 1e9;
}

}  // namespace cli
