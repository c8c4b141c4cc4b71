// The integers of a session, without a model.
#include <doctest/doctest.h>

#include "../src/engine/timeline.h"
#include "support.h"

using namespace auspex;
using namespace auspex::detail;

namespace {

Timeline timeline_of(std::vector<Token> ids) {
    Timeline t;
    t.reserve(64, 9);
    for (Token id : ids) t.append(id);
    t.give_only(t.size());
    return t;
}

}  // namespace

TEST_CASE("a timeline finds the common prefix, also with a view of its own tokens") {
    Timeline t = timeline_of({1, 2, 3, 4});
    CHECK(t.common_prefix(std::vector<Token>{1, 2, 9}) == 2);
    CHECK(t.common_prefix(std::vector<Token>{1, 2, 3, 4, 5}) == 4);
    CHECK(t.common_prefix({}) == 0);
    CHECK(t.common_prefix(t.tokens()) == 4);
}

TEST_CASE("guesses follow the tokens in memory, and tokens computed ahead are not given") {
    Timeline t = timeline_of({1, 2, 3});
    CHECK(t.tail() == t.tokens().data() + 3);
    t.prefilled(3);
    t.append(7);
    CHECK(t.size() == 4);
    CHECK(t.n_given() == 3);
    t.give_only(t.size());
    CHECK(t.n_given() == 4);
    t.truncate(2);
    CHECK(t.n_given() == 2);
}

TEST_CASE("only the last tentative step can be shortened, and only until something else runs") {
    Timeline t = timeline_of({1, 2, 3, 4, 5, 6, 7, 8});
    t.prefilled(3);
    CHECK_FALSE(t.can_step_back(2));
    t.decoded(4);
    CHECK(t.n_row() == 7);
    CHECK(t.step_first() == 3);
    CHECK_FALSE(t.can_step_back(7));
    CHECK(t.can_step_back(3));
    CHECK_FALSE(t.can_step_back(2));
    t.step_back(5);
    CHECK(t.n_row() == 5);
    CHECK(t.can_step_back(4));
    t.close_step();
    CHECK_FALSE(t.can_step_back(4));
    t.decoded(1);
    t.prefilled(1);
    CHECK_FALSE(t.can_step_back(6));
}

TEST_CASE("a timeline records how its rows were computed") {
    Timeline t = timeline_of(std::vector<Token>(60, 1));
    t.prefilled(18);
    t.prefilled(14);
    t.decoded(3);
    t.decoded(2);
    REQUIRE(t.spans().size() == 3);
    CHECK(t.spans()[1].first == 18);
    CHECK(t.spans()[2].n == 5);
    CHECK(t.spans()[2].origin == RowOrigin::decoded);
    t.step_back(35);
    CHECK(t.spans()[2].n == 3);
    t.prefilled(16);
    t.decoded(1);
    t.step_back(51);
    CHECK(t.spans().size() == 4);
    t.restart(5);
    CHECK(t.spans().empty());
    CHECK(t.size() == 5);
    CHECK(t.n_row() == 0);
    t.resume(2, {{0, 2, RowOrigin::restored}});
    t.assign(std::vector<Token>{4, 5});
    REQUIRE(t.spans().size() == 1);
    CHECK(t.spans()[0].origin == RowOrigin::restored);
    CHECK(t.n_row() == 2);
    CHECK(t.n_given() == 2);
}

TEST_CASE("rows that come one by one, or few at a time, are one span") {
    Timeline t = timeline_of(std::vector<Token>(64, 1));
    t.prefilled(10);
    for (const size_t n : std::initializer_list<size_t>{1, 1, 9, 2, 1}) t.prefilled(n);
    t.decoded(3);
    t.prefilled(1);
    REQUIRE(t.spans().size() == 2);
    CHECK(t.spans()[0].n == 10);
    CHECK(t.spans()[1].n == 18);
    CHECK(t.spans()[1].origin == RowOrigin::decoded);
    CHECK_FALSE(t.can_step_back(27));
}
