// The promises of machine/pool: everyone runs, everyone meets, nothing is lost.
#include "../src/machine/background.h"
#include "../src/machine/pool.h"
#include "support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cfenv>
#include <chrono>

using namespace auspex;
using namespace auspex::detail;

namespace {

std::unique_ptr<Pool> open_pool(uint32_t n) {
    std::unique_ptr<Pool> pool;
    const Status st = Pool::open(n).get(pool);
    REQUIRE_MESSAGE(st.ok(), st.message());
    return pool;
}

struct Counts {
    Pool* pool;
    std::vector<uint32_t> calls;  // by thread; no atomics: the pool must order them
    std::vector<uint64_t> values;
    uint32_t n_phase = 0;
    bool wrong = false;
};

void count_call(void* c, uint32_t i, uint32_t n) {
    Counts& counts = *static_cast<Counts*>(c);
    if (n != counts.calls.size()) counts.wrong = true;
    ++counts.calls[i];
}

/// Each phase adds up what all threads wrote in the phase before, so that a race or a lost barrier shows.
void chained_phases(void* c, uint32_t i, uint32_t n) {
    Counts& counts = *static_cast<Counts*>(c);
    for (uint32_t phase = 0; phase < counts.n_phase; ++phase) {
        const uint64_t* from = counts.values.data() + (phase % 2) * n;
        uint64_t sum = phase + i;
        for (uint32_t j = 0; j < n; ++j) sum += from[j];
        counts.values[((phase + 1) % 2) * n + i] = sum % 1000003;
        counts.pool->barrier();
    }
}

std::vector<uint64_t> expected_phases(uint32_t n, uint32_t n_phase) {
    std::vector<uint64_t> v(n, 0);
    for (uint32_t phase = 0; phase < n_phase; ++phase) {
        uint64_t sum = 0;
        for (const uint64_t x : v) sum += x;
        for (uint32_t i = 0; i < n; ++i) v[i] = (sum + phase + i) % 1000003;
    }
    return v;
}

void take_tickets(void* c, uint32_t i, uint32_t n) {
    Counts& counts = *static_cast<Counts*>(c);
    for (uint32_t round = 0; round < 3; ++round) {
        for (uint32_t k = 0; k < 2; ++k) {
            const Share share = counts.pool->shared(i, k);
            if (!share.ticket) {
                counts.calls[i] += 50;
                continue;
            }
            while (share.ticket->fetch_add(1) < 50) ++counts.calls[i];
        }
        counts.pool->barrier();
    }
    if (n != counts.pool->n_thread()) counts.wrong = true;
}

/// With more than two threads one is late; each phase every thread sees what all of them wrote.
struct Late {
    Pool* pool;
    std::vector<uint64_t> written;  // by thread
    uint64_t run = 0;
    std::atomic<uint32_t> n_wrong{0};
    std::vector<uint32_t> n_run_with;  // by number of threads

    static void work(void* context, uint32_t i, uint32_t n) {
        Late& late = *static_cast<Late*>(context);
        if (n > 2 && i == n - 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (uint64_t phase = 0; phase < 4; ++phase) {
            const uint64_t now = 4 * late.run + phase;
            late.written[i] = now;
            late.pool->barrier();
            for (uint32_t k = 0; k < n; ++k) late.n_wrong += late.written[k] != now;
            late.pool->barrier();
        }
        if (i == 0) ++late.n_run_with[n];
    }
};

}  // namespace

TEST_CASE("a pool runs the work once on every thread") {
    for (const uint32_t n : {1u, 2u, 3u, 7u}) {
        auto pool = open_pool(n);
        CHECK(pool->n_thread() == n);
        Counts counts{pool.get(), std::vector<uint32_t>(n), {}, 0, false};
        for (int k = 0; k < 200; ++k) pool->run(count_call, &counts);
        CHECK_FALSE(counts.wrong);
        for (const uint32_t c : counts.calls) CHECK(c == 200);
    }
}

TEST_CASE("after a barrier every thread reads what all wrote before it") {
    for (const uint32_t n : {1u, 2u, 4u, 9u}) {
        auto pool = open_pool(n);
        for (int k = 0; k < 5; ++k) {
            Counts counts{pool.get(), {}, std::vector<uint64_t>(2 * n), 100, false};
            pool->run(chained_phases, &counts);
            const std::vector<uint64_t> expected = expected_phases(n, 100);
            for (uint32_t i = 0; i < n; ++i) CHECK(counts.values[i] == expected[i]);
        }
    }
}

TEST_CASE("a barrier and a new run reset the work counters") {
    for (const uint32_t n : {1u, 2u, 3u}) {
        auto pool = open_pool(n);
        Counts counts{pool.get(), std::vector<uint32_t>(n), {}, 0, false};
        pool->run(take_tickets, &counts);
        pool->run(take_tickets, &counts);
        uint32_t sum = 0;
        for (const uint32_t c : counts.calls) sum += c;
        CHECK(sum == 2 * 3 * 2 * 50);
        CHECK_FALSE(counts.wrong);
    }
}

TEST_CASE("sleeping threads wake up for the next run") {
    auto pool = open_pool(3);
    Counts counts{pool.get(), std::vector<uint32_t>(3), {}, 0, false};
    for (int k = 0; k < 10; ++k) {
        pool->run(count_call, &counts);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (const uint32_t c : counts.calls) CHECK(c == 10);
}

TEST_CASE("barriers work while other processes use the cores") {
    std::atomic<bool> stop{false};
    std::vector<std::thread> hogs;
    for (uint32_t i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
        hogs.emplace_back([&stop] {
            while (!stop.load(std::memory_order_relaxed)) {
            }
        });
    auto pool = open_pool(2);
    for (int k = 0; k < 20; ++k) {
        Counts counts{pool.get(), {}, std::vector<uint64_t>(4), 100, false};
        pool->run(chained_phases, &counts);
        const std::vector<uint64_t> expected = expected_phases(2, 100);
        for (uint32_t i = 0; i < 2; ++i) CHECK(counts.values[i] == expected[i]);
    }
    stop = true;
    for (std::thread& t : hogs) t.join();
}

TEST_CASE("runs that may have fewer threads leave a late one out, and lose nothing when the number changes") {
    auto pool = open_pool(4);
    Late late{pool.get(), std::vector<uint64_t>(4), 0, {0}, std::vector<uint32_t>(5)};
    for (; late.run < 3000; ++late.run) {
        if (late.run % 100 == 7)
            pool->run(Late::work, &late);  // in between, all of them
        else
            pool->run_some(Late::work, &late, 0);
    }
    CHECK(late.n_wrong == 0);
    CHECK(late.n_run_with[2] + late.n_run_with[1] > 2000);
    CHECK(late.n_run_with[4] >= 30);
    CHECK(late.n_run_with[0] == 0);
}

TEST_CASE("many pools, and one pool used by many threads, do not disturb each other") {
    auto common = open_pool(2);
    std::vector<std::thread> users;
    std::atomic<int> wrong{0};
    for (uint32_t u = 0; u < 4; ++u)
        users.emplace_back([u, &common, &wrong] {
            std::unique_ptr<Pool> own;
            if (!Pool::open(1 + u).get(own).ok()) {
                ++wrong;
                return;
            }
            for (int k = 0; k < 20; ++k)
                for (Pool* pool : {own.get(), common.get()}) {
                    const uint32_t n = pool->n_thread();
                    Counts counts{pool, {}, std::vector<uint64_t>(2 * n), 10, false};
                    pool->run(chained_phases, &counts);
                    const std::vector<uint64_t> expected = expected_phases(n, 10);
                    for (uint32_t i = 0; i < n; ++i) wrong += counts.values[i] != expected[i];
                }
        });
    for (std::thread& t : users) t.join();
    CHECK(wrong == 0);
}

TEST_CASE("an invalid number of threads is rejected with the limits") {
    std::unique_ptr<Pool> pool;
    for (const uint32_t n : {0u, Pool::kMaxThread + 1}) {
        const Status st = Pool::open(n).get(pool);
        CHECK(st.code == Code::bad_argument);
        CHECK(st.text.find("expected 1 to 256") != std::string::npos);
    }
}

TEST_CASE("an even split covers every item once") {
    for (const uint64_t n_item : {0u, 1u, 5u, 64u, 1001u})
        for (uint32_t n = 1; n < 9; ++n) {
            uint64_t next = 0;
            for (uint32_t i = 0; i < n; ++i) {
                uint64_t a, b;
                even_part(n_item, {i, n, nullptr}, &a, &b);
                CHECK(a == next);
                CHECK(b >= a);
                next = b;
            }
            CHECK(next == n_item);
        }
}

TEST_CASE("pieces by ticket or by an even split cover every item once, none is larger than asked for") {
    for (const uint32_t n_item : {0u, 1u, 5u, 64u, 1001u})
        for (const uint32_t max : {1u, 7u, 2000u})
            for (uint32_t n = 1; n < 9; ++n) {
                CAPTURE(n_item);
                CAPTURE(max);
                CAPTURE(n);
                std::vector<uint32_t> by_split(n_item);
                std::atomic<uint32_t> ticket{0};
                test::Random random(n);
                uint32_t last = 0, n_piece = 0;
                each_piece(n_item, max, {0, n, &ticket}, [&](uint32_t from, uint32_t to) {
                    CHECK(from >= last);
                    CHECK(to - from <= std::max(1u, std::min(max, (n_item - from) / (2 * n))));
                    last = to;
                    ++n_piece;
                    if (random.below(2) != 0) ++ticket, ++n_piece;  // another thread takes the next one
                });
                CHECK(ticket == n_piece + 1);
                for (uint32_t i = 0; i < n; ++i)
                    each_piece(n_item, max, {i, n, nullptr}, [&](uint32_t from, uint32_t to) {
                        for (uint32_t k = from; k < to; ++k) ++by_split[k];
                    });
                CHECK(std::count(by_split.begin(), by_split.end(), 1u) == static_cast<std::ptrdiff_t>(n_item));
            }
}

TEST_CASE("the threads of a pool take every piece once") {
    constexpr uint32_t kItems = 5000, kThreads = 4;
    struct Taken {
        Pool* pool;
        std::vector<std::atomic<uint32_t>> n = std::vector<std::atomic<uint32_t>>(kItems);
    } taken;
    const std::unique_ptr<Pool> pool = open_pool(kThreads);
    taken.pool = pool.get();
    for (uint32_t run = 1; run <= 20; ++run) {
        const auto work = [](void* c, uint32_t i, uint32_t) {
            Taken& t = *static_cast<Taken*>(c);
            each_piece(kItems, 16, t.pool->shared(i, 0), [&](uint32_t from, uint32_t to) {
                for (uint32_t k = from; k < to; ++k) ++t.n[k];
            });
        };
        pool->run(work, &taken);
        CHECK(std::count(taken.n.begin(), taken.n.end(), run) == static_cast<std::ptrdiff_t>(kItems));
    }
}

namespace {

struct ModeProbe {
    volatile float one = 1.0f, three = 3.0f, tiny = 1e-40f;
    std::vector<float> third, product;  // by thread
};

void probe_mode(void* c, uint32_t i, uint32_t) {
    ModeProbe& p = *static_cast<ModeProbe*>(c);
    p.third[i] = p.one / p.three;
    p.product[i] = p.tiny * p.one;
}

}  // namespace

TEST_CASE("every thread of a pool computes in the default floating-point mode, and the caller's mode is restored") {
    for (const uint32_t n : {1u, 3u}) {
        std::fesetround(FE_UPWARD);
        const std::unique_ptr<Pool> pool = open_pool(n);  // its threads inherit the mode of this one
        ModeProbe p;
        p.third.resize(n);
        p.product.resize(n);
        pool->run(probe_mode, &p);
        const int mode = std::fegetround();
        std::fesetround(FE_TONEAREST);
        CHECK(mode == FE_UPWARD);
        for (uint32_t i = 0; i < n; ++i) {
            CHECK(p.third[i] == p.one / p.three);
            CHECK(p.product[i] == 1e-40f);
        }
    }
}

TEST_CASE("a background thread runs one function after the other, or the caller does") {
    for (const bool threaded : {false, true}) {
        std::vector<int> seen;
        std::thread::id other;
        struct Job {
            std::vector<int>& to;
            std::thread::id& by;
            int i;
        } job{seen, other, 0};
        {
            Background background;
            if (threaded) REQUIRE(background.start());
            background.wait();
            for (int i = 0; i < 50; ++i) {
                background.wait();
                job.i = i;
                background.run(
                    [](void* context) {
                        Job& j = *static_cast<Job*>(context);
                        j.to.push_back(j.i);
                        j.by = std::this_thread::get_id();
                    },
                    &job);
            }
        }  // after the last one
        REQUIRE(seen.size() == 50);
        for (int i = 0; i < 50; ++i) CHECK(seen[static_cast<size_t>(i)] == i);
        CHECK((other != std::this_thread::get_id()) == threaded);
    }
}
