// Tests of engine/cycle_cost: what cycles at each depth cost, as learned from times and left to the next process.
#include <doctest/doctest.h>

#include "../src/engine/cycle_cost.h"

#include <cmath>
#include <cstring>

using namespace auspex;
using namespace auspex::detail;

TEST_CASE("unmeasured depths are extrapolated from drafting depths only") {
    CycleCost cost;
    cost.enter(100);
    CHECK(cost.seconds(3) == 0);
    cost.observe(0, 1.0);
    cost.observe(1, 2.0);
    cost.observe(2, 2.5);
    CHECK(cost.seconds(4) == doctest::Approx(3.5));  // with g = 0 on the line it would be 4.3
    CHECK(cost.seconds(0) == doctest::Approx(1.0));
}

TEST_CASE("a depth that was measured once remains uncertain: it may have been an outlier") {
    CycleCost cost;
    cost.enter(100);
    cost.observe(0, 1.0);
    cost.observe(1, 2.0);
    CHECK(cost.uncertainty(1) > 1);
    for (int i = 0; i < 3; ++i) cost.observe(1, 2.0);
    CHECK(cost.uncertainty(1) < 0.2);
}

TEST_CASE("one slow cycle counts in part, a lasting change in full and for all depths") {
    CycleCost cost;
    cost.enter(100);
    for (int i = 0; i < 20; ++i)
        for (const uint32_t g : {0u, 1u, 2u}) cost.observe(g, 1 + g * 0.5);
    cost.observe(2, 10);
    CHECK(cost.seconds(2) < 2.1);
    for (int i = 0; i < 20; ++i) cost.observe(2, 2 * 1.6);
    CHECK(cost.seconds(2) == doctest::Approx(3.2).epsilon(0.03));
    CHECK(cost.seconds(0) == doctest::Approx(1.6).epsilon(0.05));  // not measured since, but the clock is shared
}

TEST_CASE("the next cycle at another depth tells a slower machine from a slower depth") {
    CycleCost cost;
    cost.enter(100);
    for (int i = 0; i < 20; ++i)
        for (const uint32_t g : {0u, 1u, 2u}) cost.observe(g, 1 + g * 0.5);
    CHECK(cost.surprised() > 2);
    for (int i = 0; i < 3; ++i) {  // plain steps alone cost twice as much
        cost.observe(0, 2);
        CHECK(cost.surprised() == (i < 2 ? 0u : UINT32_MAX));
    }
    cost.observe(1, 1.5);
    CHECK(cost.seconds(0) == doctest::Approx(2).epsilon(0.05));
    CHECK(cost.seconds(1) == doctest::Approx(1.5).epsilon(0.05));
    CHECK(cost.seconds(2) == doctest::Approx(2).epsilon(0.05));
    for (int i = 0; i < 3; ++i) cost.observe(0, 1);  // that had been a load, and has gone
    cost.observe(1, 1.5);
    CHECK(cost.seconds(0) == doctest::Approx(1).epsilon(0.05));
    CHECK(cost.seconds(1) == doctest::Approx(1.5).epsilon(0.05));
    for (int i = 0; i < 3; ++i) cost.observe(1, 4.5);  // everything takes three times as long
    cost.observe(0, 3);
    CHECK(cost.seconds(0) == doctest::Approx(3).epsilon(0.05));
    CHECK(cost.seconds(2) == doctest::Approx(6).epsilon(0.06));
}

TEST_CASE("where one depth becomes cheaper, a deeper one is not kept out by its old cost") {
    const auto dear = [](uint32_t g) { return g == 0 ? 1 : 2 + 0.75 * (g - 1); };
    CycleCost cost;
    cost.enter(100);
    for (int i = 0; i < 20; ++i)
        for (const uint32_t g : {0u, 1u, 2u, 6u}) cost.observe(g, dear(g));
    for (int i = 0; i < 3; ++i) cost.observe(2, 1.35);  // 2.75 before
    cost.observe(0, 1);                                 // plain steps take what they took
    CHECK(cost.seconds(2) == doctest::Approx(1.35).epsilon(0.05));
    CHECK(cost.seconds(6) < 3);  // 5.75 before
    CHECK(cost.seconds(1) < 1.6);
    for (int i = 0; i < 4; ++i) cost.observe(6, dear(6));
    CHECK(cost.seconds(6) == doctest::Approx(5.75).epsilon(0.05));  // measured: it is as dear as it was
}

TEST_CASE("costs are kept for each octave of context, and a new octave starts from its neighbour") {
    CHECK(CycleCost::bucket_of(0) == CycleCost::bucket_of(2047));
    CHECK(CycleCost::bucket_of(2048) == 1);
    CHECK(CycleCost::bucket_of(UINT32_MAX) == CycleCost::kBucket - 1);
    CycleCost cost;
    cost.enter(1000);
    for (int i = 0; i < 5; ++i) cost.observe(0, 1.0), cost.observe(1, 1.5);
    cost.enter(5000);
    CHECK(cost.seconds(1) == doctest::Approx(1.5).epsilon(0.01));
    for (int i = 0; i < 60; ++i) cost.observe(0, 2.0), cost.observe(1, 4.0);
    CHECK(cost.seconds(1) == doctest::Approx(4.0).epsilon(0.05));
    cost.enter(1000);
    CHECK(cost.seconds(1) == doctest::Approx(1.5).epsilon(0.01));
}

/// What a process leaves to the next one in a file.
static void save_and_load(CycleCost* costs) {
    std::vector<std::byte> bytes;
    costs->save(&bytes);
    *costs = CycleCost();
    costs->enter(100);
    REQUIRE(costs->load(bytes).ok());
}

TEST_CASE("costs that one run leaves to the next do not drift while only plain steps are measured") {
    CycleCost costs;
    costs.enter(100);
    for (int i = 0; i < 30; ++i) costs.observe(0, 1e-3), costs.observe(1, 1.6e-3), costs.observe(3, 2.4e-3);
    for (int i_run = 0; i_run < 20; ++i_run) {
        save_and_load(&costs);
        for (int i = 0; i < 100; ++i) costs.observe(0, 1e-3 * (1 + std::exp(-i / 4.0)));  // a process starts slowly
        costs.observe(3, i_run % 2 ? 5e-3 : 3.6e-3);                                      // it was not run for long
        costs.observe(0, 1e-3);
        CAPTURE(i_run);
        CHECK(costs.seconds(1) / costs.seconds(0) == doctest::Approx(1.6).epsilon(0.08));
    }
}

TEST_CASE("a plain step takes no longer than a cycle with drafts, whatever costs an earlier run left") {
    for (const int n_cycle : {2, 20, 100}) {
        CAPTURE(n_cycle);
        CycleCost costs;
        costs.enter(100);
        for (int i = 0; i < 2; ++i) costs.observe(0, 57e-3);  // the machine was busy
        for (int i = 0; i < 3; ++i) costs.observe(1, 10e-3);
        for (int i_run = 0; i_run < 20; ++i_run) {
            save_and_load(&costs);
            for (int i = 0; i < n_cycle; ++i) costs.observe(i > 0, i > 0 ? 10e-3 : 6e-3);
            CHECK(costs.knows(0));
            CHECK(costs.seconds(0) <= costs.seconds(1) * 1.0001);
        }
    }
}

TEST_CASE("saved costs of which a value is out of range are refused, though their checksum fits") {
    CycleCost cost;
    cost.enter(0);
    for (int i = 0; i < 5; ++i) cost.observe(0, 1e-3), cost.observe(1, 1.5e-3);
    std::vector<std::byte> saved;
    cost.save(&saved);
    const auto with = [&](size_t at, double value) {
        std::vector<std::byte> bytes = saved;
        std::memcpy(bytes.data() + at, &value, sizeof value);
        uint32_t sum = 2166136261u;  // FNV-1a
        for (size_t i = 0; i + 4 < bytes.size(); ++i) sum = (sum ^ static_cast<uint32_t>(bytes[i])) * 16777619u;
        std::memcpy(bytes.data() + bytes.size() - 4, &sum, sizeof sum);
        return CycleCost().load(bytes);
    };
    const struct {
        size_t at;  // the noise, a speed, a ratio, its variance
        double min, max;
    } rows[] = {{4, 0, 1}, {13, -21, 12}, {21, -21, 12}, {29, 0, 1}};
    for (const auto& row : rows) {
        CAPTURE(row.at);
        for (const double v : {row.min, row.max}) CHECK(with(row.at, v).ok());
        for (const double v : {row.min - 0.01, row.max + 0.01, std::nan("")}) {
            const Status s = with(row.at, v);
            CHECK(s.code == Code::bad_file);
            CHECK_MESSAGE(s.text.find("saved draft costs hold a value out of range") == 0, s.text);
        }
    }
}
