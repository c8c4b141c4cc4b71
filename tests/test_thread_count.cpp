#include "../src/machine/thread_count.h"
#include "support.h"

#include <doctest/doctest.h>

using namespace auspex;
using namespace auspex::detail;

namespace {

/// A machine whose other programs use some cores. A run is cut into equal parts that meet `n_meet` times.
struct Machine {
    uint32_t n_core, n_busy;
    double work = 8e-3;  ///< seconds of one thread
    uint32_t n_meet = 100;
    test::Random random{7};

    double seconds(uint32_t n) {
        const double noise = 1 + 0.1 * (random.below(1000) / 1000.0 - 0.5);
        return (work / n + (is_late(n) ? n_meet * 2e-4 : 0)) * noise;
    }
    bool is_late(uint32_t n) const { return n + n_busy > n_core; }
};

struct Outcome {
    double seconds = 0;
    uint32_t n_run = 0;
};
Outcome run(ThreadCount& count, Machine& machine, uint32_t n_run) {
    constexpr uint32_t kind = 1;
    Outcome out;
    for (uint32_t i = 0; i < n_run; ++i) {
        const uint32_t n = count.next(kind);
        const double s = machine.seconds(n);
        out.seconds += s;
        ++out.n_run;
        count.observe(kind, s, machine.is_late(n));
    }
    return out;
}

}  // namespace

TEST_CASE("on a quiet machine every run has all threads") {
    ThreadCount count(16);
    Machine machine{16, 0};
    for (uint32_t i = 0; i < 5000; ++i) {
        REQUIRE(count.next(1 + i % 3) == 16);
        count.observe(1 + i % 3, machine.seconds(16), false);
    }
}

TEST_CASE("beside other programs the threads become those that pay, and all again when the others end") {
    for (const uint32_t n_busy : {1u, 4u, 8u, 12u, 15u}) {
        CAPTURE(n_busy);
        ThreadCount count(16);
        Machine machine{16, n_busy};
        run(count, machine, 2000);
        const Outcome later = run(count, machine, 4000);
        const double best = machine.work / (16 - n_busy);
        CHECK(later.seconds / later.n_run < 1.6 * best);
        machine.n_busy = 0;
        run(count, machine, 40000);
        CHECK(count.next(1) == 16);
    }
    ThreadCount two(2);
    Machine machine{2, 1};
    run(two, machine, 500);
    CHECK(run(two, machine, 1000).seconds < 1.1 * 1000 * machine.work);
}

TEST_CASE("threads that wait for uneven work cost trials, which are rare") {
    ThreadCount count(8);
    Machine machine{8, 0};
    double seconds = 0;
    constexpr uint32_t kRun = 20000;
    for (uint32_t i = 0; i < kRun; ++i) {
        const double s = machine.seconds(count.next(1));
        seconds += s;
        count.observe(1, s, true);
    }
    CHECK(seconds < 1.02 * kRun * machine.work / 8);
}

TEST_CASE("runs of other kinds are compared with their own time, and long ones not at all") {
    ThreadCount count(8);
    Machine machine{8, 6};
    for (uint32_t i = 0; i < 3000; ++i) {
        const uint32_t kind = i % 3 == 2 ? ThreadCount::kKind : i % 3, n = count.next(kind);
        const double s = machine.seconds(n) * (i % 3 + 1);
        count.observe(kind, s, machine.is_late(n));
    }
    CHECK(count.next(0) <= 3);
    ThreadCount prompts(8);
    for (uint32_t i = 0; i < 3000; ++i) {
        prompts.observe(ThreadCount::kKind, 1, true);
        REQUIRE(prompts.next(ThreadCount::kKind) == 8);
    }
}

TEST_CASE("a trial judges short runs between long ones by their own time") {
    for (const double share : {0.5, 0.12, 0.03})  // of a trunk step's time: each step of a draft block
        for (const uint32_t n_short : {1u, 4u}) {
            CAPTURE(share);
            CAPTURE(n_short);
            ThreadCount count(8);
            Machine machine{8, 4};
            machine.work = 80e-3;
            for (uint32_t i = 0; i < 3000; ++i) {
                const bool is_short = i % (n_short + 1) != n_short;
                const uint32_t kind = is_short ? 33 : 1, n = count.next(kind);
                count.observe(kind, machine.seconds(n) * (is_short ? share : 1), machine.is_late(n));
            }
            CHECK(count.next(1) == 4);
        }
}

TEST_CASE("models that share the threads are not compared with one another, whoever else has run") {
    for (const double ratio : {1.0, 5.0, 10.0})
        for (const uint32_t phase : {1u, 20u, 50u, 1000u})
            for (const uint32_t other : {1u, 4u}) {  // 4: whose times take the place of the first one's
                CAPTURE(ratio);
                CAPTURE(phase);
                CAPTURE(other);
                ThreadCount count(8);
                Machine machine{8, 0};
                double seconds = 0, best = 0;
                for (uint32_t i = 0; i < 20000; ++i) {
                    const bool second = i / phase % 2 == 1;
                    const uint32_t owner = second ? other : 0, n = count.next(1, owner);
                    const double share = second ? ratio : 1, s = machine.seconds(n) * share;
                    seconds += s;
                    best += machine.work / 8 * share;
                    count.observe(1, s, machine.random.below(10) < 3, owner);
                }
                CHECK(seconds < 1.02 * best);
            }
    // Fewer threads are found for both of them together.
    ThreadCount count(8);
    Machine machine{8, 6};
    for (uint32_t i = 0; i < 4000; ++i) {
        const uint32_t owner = i / 20 % 2, n = count.next(1, owner);
        count.observe(1, machine.seconds(n) * (owner == 0 ? 1 : 10), machine.is_late(n), owner);
    }
    CHECK(count.next(1, 0) <= 3);
}

TEST_CASE("fewer threads are found where more models take turns at each step than are compared") {
    for (const std::vector<uint32_t>& owners : {std::vector<uint32_t>{0, 4}, {0, 1, 2, 3, 4, 5, 6, 7}}) {
        CAPTURE(owners.size());
        ThreadCount count(8);
        Machine machine{8, 6};
        for (uint32_t i = 0; i < 8000; ++i) {
            const uint32_t owner = owners[i % owners.size()], n = count.next(1, owner);
            count.observe(1, machine.seconds(n) * (1 + owner), machine.is_late(n), owner);
        }
        CHECK(count.next(1, 0) <= 3);
        // One that comes later is compared once an earlier one has not run for long.
        for (uint32_t i = 0; i < 2000; ++i) {
            const uint32_t n = count.next(1, 12);
            count.observe(1, machine.seconds(n) * 20, machine.is_late(n), 12);
        }
        CHECK(count.next(1, 12) <= 3);
    }
}

TEST_CASE("runs that cannot be compared have the usual threads while a number is tried") {
    ThreadCount count(8);
    Machine machine{8, 0};
    uint32_t i = 0;
    for (; count.next(1) == 8; ++i) {
        REQUIRE(i < 1000);
        count.observe(1, machine.seconds(8), true);
    }
    for (const uint32_t kind : {2u, ThreadCount::kKind}) CHECK(count.next(kind) == 8);
    for (i = 0; i < 3; ++i) {
        CHECK(count.next(2) == 8);
        count.observe(2, machine.seconds(8), true);
    }
    CHECK(count.next(1) == 4);  // the trial goes on
}

TEST_CASE("one thread stays one, and times that are none are ignored") {
    ThreadCount one(1), two(2);
    for (uint32_t i = 0; i < 1000; ++i) {
        one.observe(0, 1, true);
        two.observe(0, i % 2 ? 0 : -1, true);
        REQUIRE(one.next(0) == 1);
        REQUIRE(two.next(0) == 2);
    }
}
