// The arithmetic behind `auspex bench`: intervals, diversity, break-even, hindsight.
#include <doctest/doctest.h>

#include "tools/bench/score.h"

using namespace cli;

TEST_CASE("a Wilson interval holds its published values and stays within 0 and 1") {
    // Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    CHECK(wilson(81, 263).low == doctest::Approx(0.2553).epsilon(0.0005));
    CHECK(wilson(81, 263).high == doctest::Approx(0.3662).epsilon(0.0005));
    CHECK(wilson(15, 148).low == doctest::Approx(0.0624).epsilon(0.001));
    CHECK(wilson(15, 148).high == doctest::Approx(0.1605).epsilon(0.001));
    CHECK(wilson(0, 20).low == doctest::Approx(0));
    CHECK(wilson(0, 20).high == doctest::Approx(0.1611).epsilon(0.001));
    CHECK(wilson(1, 29).low == doctest::Approx(0.0061).epsilon(0.01));
    CHECK(wilson(1, 29).high == doctest::Approx(0.1718).epsilon(0.001));
    CHECK(wilson(20, 20).high == doctest::Approx(1));
    CHECK(wilson(0, 0).low == 0);
    CHECK(wilson(0, 0).high == 1);
}

TEST_CASE("a loop has little diversity and a text without repetitions all of it") {
    std::vector<int32_t> varied, loop;
    for (int32_t i = 0; i < 100; ++i) varied.push_back(i), loop.push_back(i % 4);
    CHECK(distinct_share(varied, 4) == 1);
    CHECK(distinct_share(loop, 4) == doctest::Approx(4.0 / 97));
    CHECK(distinct_share({1, 2, 3}, 4) == 1);
    CHECK(distinct_share({1, 1, 1, 1}, 1) == 0.25);
}

TEST_CASE("break-even in its two units describes the same cycle") {
    // A published one: R(3) = 2.62 is 0.54 in accepted/drafted and 0.72 in conditional acceptance.
    CHECK(break_even_ratio(2.62, 3) == doctest::Approx(0.54));
    CHECK(break_even_acceptance(2.62, 3) == doctest::Approx(0.72).epsilon(0.01));
    CHECK(break_even_acceptance(2, 1) == doctest::Approx(1));
    CHECK(break_even_acceptance(2.31, 1) > 1);  // a cycle dearer than its tokens never pays
    CHECK(break_even_acceptance(1, 5) == doctest::Approx(0));
}

TEST_CASE("hindsight takes each phase's best fixed depth and compares run with run") {
    // Two phases, three runs: depth 0, depth 1, the judged policy. Depth 1 wins the first phase.
    const Seconds s = {{{4, 4}, {4, 4}, {4, 4}}, {{2, 6}, {2, 6}, {1, 6}}, {{2.5, 4}, {2, 5}, {2, 4}}};
    const Hindsight h = hindsight(s);
    CHECK(h.best == std::vector<size_t>{1, 0});
    CHECK(h.by_phase[0].mean == doctest::Approx((0.8 + 1 + 0.5) / 3));
    CHECK(h.by_phase[0].min == doctest::Approx(0.5));
    CHECK(h.by_phase[0].max == doctest::Approx(1));
    CHECK(h.by_phase[1].mean == doctest::Approx((1 + 0.8 + 1) / 3));
    CHECK(h.worst_phase == doctest::Approx((0.8 + 1 + 0.5) / 3));
    CHECK(h.all.mean == doctest::Approx((6 / 6.5 + 6.0 / 7 + 5.0 / 6) / 3));
    CHECK(h.over_off.mean == doctest::Approx((8 / 6.5 + 8.0 / 7 + 8.0 / 6) / 3));
}

TEST_CASE("one lucky run does not make a depth the best") {
    const Seconds s = {{{4}, {4}, {4}}, {{1}, {5}, {5}}, {{4}, {4}, {4}}};
    CHECK(hindsight(s).best == std::vector<size_t>{0});
    CHECK(hindsight(s).all.mean == doctest::Approx(1));
}
