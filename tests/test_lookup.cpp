// Tests of engine/lookup: what it finds is what a search of the whole text finds.
#include <doctest/doctest.h>

#include <algorithm>

#include "../src/engine/lookup.h"
#include "support.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

struct Found {
    uint32_t length = 0;
    std::vector<Token> guess;
};

/// Compares every earlier place of the text, the latest first.
Found search(const std::vector<Token>& h, uint32_t n) {
    Found found;
    size_t after = 0;
    const size_t low = h.size() > Lookup::kSearched ? h.size() - Lookup::kSearched : 0;
    for (size_t end = h.size() - 1; end > low; --end) {
        uint32_t length = 0;
        while (length < Lookup::kMaxMatch && length < end - low && h[end - 1 - length] == h[h.size() - 1 - length])
            ++length;
        if (length > found.length) found.length = length, after = end;
    }
    if (found.length < Lookup::kMinMatch) return {};
    for (size_t i = 0; i < n; ++i)
        found.guess.push_back(after + i < h.size() ? h[after + i] : found.guess[after + i - h.size()]);
    return found;
}

void check(Lookup& lookup, const std::vector<Token>& history) {
    Token to[8];
    const uint32_t n = lookup.propose({history, 8, Sampling(), to}).value();
    const Found want = search(history, 8);
    REQUIRE(n == want.guess.size());
    REQUIRE(std::equal(to, to + n, want.guess.begin()));
    REQUIRE(lookup.match_length() == want.length);
}

}  // namespace

TEST_CASE("lookup drafts the tokens after the longest earlier match") {
    Lookup lookup;
    Token to[8];
    const auto propose = [&](Span<const Token> history, uint32_t n) {
        lookup.replaced(0);
        return lookup.propose({history, n, Sampling(), to}).value();
    };
    const std::vector<Token> text = {9, 1, 2, 3, 40, 41, 42, 7, 2, 3, 50, 51, 1, 2, 3};
    CHECK(propose(text, 3) == 3);
    CHECK(lookup.match_length() == 3);
    CHECK(to[0] == 40);
    CHECK(to[2] == 42);
    const std::vector<Token> recent = {7, 2, 3, 50, 8, 2, 3, 60, 2, 3};
    CHECK(propose(recent, 1) == 1);
    CHECK(to[0] == 60);  // of equally long matches the latest
    const std::vector<Token> period = {1, 2, 1, 2, 1, 2, 1, 2};
    CHECK(propose(period, 5) == 5);
    CHECK(std::vector<Token>(to, to + 5) == std::vector<Token>{1, 2, 1, 2, 1});
    CHECK(lookup.match_length() == 6);
    CHECK(propose(std::vector<Token>{1, 2, 3, 4}, 4) == 0);
    CHECK(propose(std::vector<Token>{1}, 4) == 0);
    CHECK(propose(text, 0) == 0);
    CHECK(propose(std::vector<Token>(5000, 5), 8) == 8);
    CHECK(lookup.match_length() == Lookup::kMaxMatch);
}

TEST_CASE("texts that grow, are cut and are replaced are searched as a whole") {
    for (const uint32_t n_id : {2u, 5u, 40u, 1000u}) {
        CAPTURE(n_id);
        Random random(n_id);
        Lookup lookup(2000);
        std::vector<Token> text;
        for (int step = 0; step < 600; ++step) {
            const uint32_t what = random.below(12);
            if (what == 0) {  // another text with the same beginning
                const size_t same = random.below(static_cast<uint32_t>(text.size()) + 1);
                lookup.replaced(same);
                text.resize(same);
                const size_t n = random.below(200);
                for (size_t i = 0; i < n; ++i) text.push_back(static_cast<Token>(random.below(n_id)));
            } else if (what == 1 && text.size() > 8) {  // the last tokens are taken back
                text.resize(text.size() - random.below(8));
            } else if (what < 4 && text.size() > 60) {  // a piece once more
                const size_t from = random.below(static_cast<uint32_t>(text.size()) - 40);
                for (size_t i = 0; i < 40; ++i) text.push_back(text[from + i]);
            } else {
                const size_t n = 1 + random.below(9);
                for (size_t i = 0; i < n; ++i) text.push_back(static_cast<Token>(random.below(n_id)));
            }
            if (text.size() > 1900) lookup.replaced(100), text.resize(100);
            if (!text.empty()) check(lookup, text);
        }
    }
}

TEST_CASE("of a long text the last kSearched tokens are searched, also after a part of it was taken back") {
    Random random(1);
    Lookup lookup(3 * Lookup::kSearched);
    std::vector<Token> text;
    const auto grow = [&](size_t n) {
        for (size_t i = 0; i < n; ++i) text.push_back(static_cast<Token>(random.below(300)));
    };
    grow(100);
    check(lookup, text);
    for (int step = 0; step < 24; ++step) {
        grow(step % 3 == 0 ? Lookup::kSearched / 4 : 50);
        check(lookup, text);
    }
    Token to[8];
    // Places that the ring has lost do not come back, so a shorter text may know less; never something wrong.
    for (int step = 0; step < 6; ++step) {
        const size_t same = text.size() - Lookup::kSearched / 5;
        lookup.replaced(same);
        text.resize(same);
        grow(10);
        const uint32_t n = lookup.propose({text, 8, Sampling(), to}).value();
        CHECK((n == 0 || lookup.match_length() <= search(text, 8).length));
    }
    lookup.replaced(10);
    text.resize(10);
    grow(500);
    check(lookup, text);
}

TEST_CASE("lookup takes the memory that it states") {
    for (const size_t n : {size_t{1}, size_t{64}, size_t{65}, size_t{4096}, Lookup::kSearched, 9 * Lookup::kSearched})
        CHECK(Lookup::memory_bytes(n) <= 7 * std::max(size_t{64}, std::min(2 * n, Lookup::kSearched)));
    CHECK(Lookup::memory_bytes(4096) == 4096 * 4 + 4096 * 2 + 1024 * 4);
}
