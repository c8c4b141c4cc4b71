#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

#include "../src/engine/sampler.h"
#include "support.h"

using namespace auspex;
using namespace auspex::detail;

namespace {

struct Bench {
    Sampler sampler;
    std::vector<float> logits;
    explicit Bench(std::vector<float> l) : logits(std::move(l)) {
        REQUIRE(sampler.open({}, static_cast<uint32_t>(logits.size())).ok());
    }
    Token sample(const Sampling& s, uint64_t position = 7, std::vector<Token> before = {}) {
        return sampler.sample(logits, s, position, before);
    }
    /// How often each id comes up over many positions.
    std::map<Token, int> counts(const Sampling& s, int n) {
        std::map<Token, int> c;
        for (int i = 0; i < n; ++i) ++c[sample(s, static_cast<uint64_t>(i))];
        return c;
    }
};

}  // namespace

TEST_CASE("philox gives its published outputs") {
    const Philox zero = philox(0, 0, 0, 0, 0);
    CHECK(zero.word[0] == 0x6627e8d5u);
    CHECK(zero.word[1] == 0xe169c58du);
    CHECK(zero.word[2] == 0xbc57ac4cu);
    CHECK(zero.word[3] == 0x9b00dbd8u);
    const Philox ones = philox(~0u, ~0u, ~0u, ~0u, ~uint64_t{0});
    CHECK(ones.word[0] == 0x408f276du);
    CHECK(ones.word[3] == 0x6d5451fdu);
    const Philox pi = philox(0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0x299f31d0a4093822ull);
    CHECK(pi.word[0] == 0xd16cfe09u);
    CHECK(pi.word[1] == 0x94fdccebu);
    CHECK(pi.word[2] == 0x5001e420u);
    CHECK(pi.word[3] == 0x24126ea1u);
}

TEST_CASE("greedy takes the largest logit, the lower id on a tie, and never a NaN") {
    Bench b({1, 3, NAN, 3, 2});
    CHECK(b.sample({}) == 1);
    b.logits = {NAN, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    CHECK(b.sample({}) == 0);
}

TEST_CASE("the token depends on logits, seed and position alone") {
    test::Random random(1);
    Bench b(random.normals(1000, 2));
    Sampling s;
    s.temperature = 1;
    s.seed = 42;
    const Token first = b.sample(s, 100);
    b.sample(s, 3);
    CHECK(b.sample(s, 100) == first);
    int differ = 0;
    for (uint64_t p = 0; p < 20; ++p) differ += b.sample(s, p) != first;
    CHECK(differ > 0);
    // Filters that keep the winner do not change it: noise goes with the id, not with the rank.
    s.top_k = 999;
    s.top_p = 0.9999999f;
    CHECK(b.sample(s, 100) == first);
}

TEST_CASE("the sample follows the softmax") {
    Bench b({std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)});
    Sampling s;
    s.temperature = 1;
    constexpr int n = 40000;
    const auto c = b.counts(s, n);
    const double want[] = {0.5, 0.3, 0.15, 0.05};
    for (Token id = 0; id < 4; ++id) {
        const double p = static_cast<double>(c.at(id)) / n, sigma = std::sqrt(want[id] * (1 - want[id]) / n);
        CHECK(std::fabs(p - want[id]) < 4.5 * sigma);
    }
    s.temperature = 0.5f;  // squares the probabilities
    const auto cold = b.counts(s, n);
    const double p0 = 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), sigma = std::sqrt(p0 * (1 - p0) / n);
    CHECK(std::fabs(static_cast<double>(cold.at(0)) / n - p0) < 4.5 * sigma);
}

TEST_CASE("each filter keeps the tokens that its definition keeps") {
    Bench b({std::log(0.05f), std::log(0.5f), std::log(0.15f), std::log(0.3f)});
    Sampling s;
    s.temperature = 1;
    auto ids = [&](const Sampling& sampling) {
        std::vector<Token> seen;
        for (const auto& c : b.counts(sampling, 3000)) seen.push_back(c.first);
        return seen;
    };
    CHECK(ids(s) == std::vector<Token>{0, 1, 2, 3});
    Sampling k = s;
    k.top_k = 2;
    CHECK(ids(k) == std::vector<Token>{1, 3});
    Sampling p = s;
    p.top_p = 0.81f;
    CHECK(ids(p) == std::vector<Token>{1, 2, 3});
    p.top_p = 0.01f;
    CHECK(ids(p) == std::vector<Token>{1});
    Sampling m = s;
    m.min_p = 0.2f;
    CHECK(ids(m) == std::vector<Token>{1, 2, 3});
    // Equal logits: the lower ids are kept.
    b.logits = {1, 1, 1, 1};
    CHECK(ids(k) == std::vector<Token>{0, 1});
}

TEST_CASE("penalties count inside their window") {
    Bench b({2.0f, 1.9f, -1.0f});
    Sampling s;
    s.repeat_penalty = 2;
    CHECK(b.sample(s, 9, {0}) == 1);
    CHECK(b.sample(s, 9, {0, 1}) == 0);  // both halved
    s.penalty_window = 1;
    CHECK(b.sample(s, 9, {0, 2}) == 0);  // 0 is out of the window
    s = Sampling();
    s.presence_penalty = 0.05f;
    CHECK(b.sample(s, 9, {0, 0, 0}) == 0);  // once, however often
    s.presence_penalty = 0;
    s.frequency_penalty = 0.05f;
    CHECK(b.sample(s, 9, {0, 0, 0}) == 1);  // 2 - 3 * 0.05
}

TEST_CASE("values out of range are errors that name them") {
    auto text = [](const Sampling& s) { return check_sampling(s).message(); };
    Sampling s;
    CHECK(check_sampling(s).ok());
    s.temperature = NAN;
    CHECK(text(s).find("temperature") != std::string::npos);
    s = Sampling();
    s.top_p = 0;
    CHECK(text(s).find("top_p") != std::string::npos);
    s = Sampling();
    s.penalty_window = 5000;
    CHECK(text(s).find("penalty_window") != std::string::npos);
    s = Sampling();
    s.top_k = -1;
    CHECK(text(s).find("top_k") != std::string::npos);
}

TEST_CASE("both ends of every range are allowed, and what is beyond them is refused with the range") {
    const struct {
        const char* name;
        float Sampling::*field;
        float min, below, max, above;
        const char* range;
    } rows[] = {
        {"temperature", &Sampling::temperature, 0, -0.001f, 100, 100.001f, "0..100"},
        {"top_p", &Sampling::top_p, 1e-30f, 0, 1, 1.001f, "above 0, at most 1"},
        {"min_p", &Sampling::min_p, 0, -0.001f, 1, 1.001f, "0..1"},
        {"repeat_penalty", &Sampling::repeat_penalty, 1e-30f, 0, 100, 100.001f, "above 0, at most 100"},
        {"frequency_penalty", &Sampling::frequency_penalty, -100, -100.001f, 100, 100.001f, "-100..100"},
        {"presence_penalty", &Sampling::presence_penalty, -100, -100.001f, 100, 100.001f, "-100..100"},
    };
    const auto names = [](const Sampling& s, const char* name, const char* range) {
        const Status status = check_sampling(s);
        CHECK(status.code == Code::bad_argument);
        CHECK_MESSAGE(status.text.find(std::string("sampling.") + name + " is ") == 0, status.text);
        const std::string end = std::string(", expected ") + range;
        CHECK_MESSAGE(status.text.rfind(end) == status.text.size() - end.size(), status.text);
    };
    for (const auto& row : rows) {
        CAPTURE(row.name);
        Sampling s;
        for (const float v : {row.min, row.max}) {
            s.*row.field = v;
            CHECK(check_sampling(s).ok());
        }
        for (const float v : {row.below, row.above, -INFINITY, INFINITY, NAN}) {
            CAPTURE(v);
            s.*row.field = v;
            names(s, row.name, row.range);
        }
    }
    Sampling s;
    s.logit_bias = {{5, -1000}, {7, 1000}};
    CHECK(check_sampling(s).ok());
    for (const float v : {-1000.1f, 1000.1f, -INFINITY, INFINITY, NAN}) {
        s.logit_bias = {{5, 1}, {7, v}};
        names(s, "logit_bias[1] (id 7)", "-1000..1000");
    }
    s = Sampling();
    s.top_k = INT32_MAX, s.penalty_window = 4096;
    CHECK(check_sampling(s).ok());
    s.penalty_window = 4097;
    CHECK(check_sampling(s).message().find("sampling.penalty_window is 4097, expected 0..4096") != std::string::npos);
    s = Sampling();
    s.top_k = -1;
    CHECK(check_sampling(s).message().find("sampling.top_k is -1, expected 0 (all) or more") != std::string::npos);
}

TEST_CASE("noise has the values that its formula gives: a seeded text stays the same from version to version") {
    CHECK(gumbel(0, 0, 0) == doctest::Approx(0.6748404365727088).epsilon(1e-6));
    CHECK(gumbel(1, 2, 3) == doctest::Approx(0.8394031675569054).epsilon(1e-6));
    CHECK(gumbel(0x123456789abcdef0u, 77, 1001) == doctest::Approx(1.8025356316088206).epsilon(1e-6));
}

TEST_CASE("pruning samples the same token as the full search") {
    test::Random random(5);
    for (int round = 0; round < 20; ++round) {
        Bench b(random.normals(2000, round % 2 ? 30.0f : 3.0f));
        Sampling s;
        s.temperature = 0.7f;
        s.seed = static_cast<uint64_t>(round);
        Token best = 0;
        float top = -INFINITY;
        for (uint32_t id = 0; id < 2000; ++id) {
            const float score = b.logits[id] / s.temperature + gumbel(s.seed, 33, id);
            if (score > top) {
                top = score;
                best = static_cast<Token>(id);
            }
        }
        CHECK(b.sample(s, 33) == best);
    }
}

#if defined(__x86_64__) || defined(_M_X64)
TEST_CASE("a caller that flushes subnormals samples the same token") {
    Bench b({0.0f, 1e-40f});
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    const Token token = b.sample({});
    _mm_setcsr(mode);
    CHECK(token == 1);
}
#endif

TEST_CASE("a temperature too small to divide by gives the greedy token") {
    Bench b({0.5f, 1, 3, 2.9f, -4});
    for (const float t : {1e-30f, 1e-37f, 1e-38f, 1e-45f}) {
        Sampling s;
        s.temperature = t;
        for (uint64_t seed = 0; seed < 20; ++seed) {
            s.seed = seed;
            CHECK(b.sample(s) == 2);  // logits / 1e-38 are infinite, and the lowest id won
        }
    }
    b.logits = {1, 3e38f, 3.1e38f, 0, 0};  // too large for any temperature below 1
    Sampling s;
    s.temperature = 0.5f;
    CHECK(b.sample(s) == 2);
}

TEST_CASE("penalties over a long window cost time in proportion to it, and equal the sum by hand") {
    test::Random random(9);
    Bench b(random.normals(5000, 3));
    std::vector<Token> before;
    for (int i = 0; i < 4096; ++i) before.push_back(static_cast<Token>(random.below(5000)));
    Sampling s;
    s.penalty_window = 4096;
    s.repeat_penalty = 1.3f;
    s.frequency_penalty = 0.25f;
    s.presence_penalty = 0.5f;
    std::vector<float> by_hand = b.logits;
    for (Token id = 0; id < 5000; ++id) {
        const auto n = std::count(before.begin(), before.end(), id);
        if (n == 0) continue;
        float& l = by_hand[static_cast<size_t>(id)];
        l = l > 0 ? l / s.repeat_penalty : l * s.repeat_penalty;
        l -= static_cast<float>(n) * s.frequency_penalty + s.presence_penalty;
    }
    const auto want = std::max_element(by_hand.begin(), by_hand.end()) - by_hand.begin();
    for (int i = 0; i < 3; ++i) CHECK(b.sample(s, 7, before) == want);  // no count is left over for the next call
    const std::vector<Token> same(4096, 17);
    const auto seconds = [&](const std::vector<Token>& window) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 20; ++i) (void)b.sample(s, 7, window);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    // Distinct ids made the old search quadratic: 60 times as long as one id alone.
    CHECK(seconds(before) < 20 * seconds(same) + 1e-3);
}

namespace {

/// Ids that the filters keep, from their definitions.
std::vector<bool> kept_by_filters(const std::vector<float>& l, const Sampling& s, const std::vector<bool>& from) {
    std::vector<size_t> order;
    for (size_t i = 0; i < l.size(); ++i)
        if (from[i]) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return l[a] > l[b] || (l[a] == l[b] && a < b); });
    if (s.top_k > 0 && order.size() > static_cast<size_t>(s.top_k)) order.resize(static_cast<size_t>(s.top_k));
    if (s.top_p < 1) {
        double total = 0, mass = 0;
        for (const size_t i : order) total += std::exp(double{l[i]} - double{l[order[0]]});
        size_t n = 0;
        while (n < order.size() && mass < double{s.top_p} * total)
            mass += std::exp(double{l[order[n++]]} - double{l[order[0]]});
        order.resize(n);
    }
    std::vector<bool> kept(l.size());
    for (const size_t i : order) kept[i] = is_greedy(s) || s.min_p == 0 || l[i] >= l[order[0]] + std::log(s.min_p);
    return kept;
}

}  // namespace

TEST_CASE("filters see all logits, or where they keep nothing that is allowed, the allowed ones alone") {
    constexpr uint32_t kVocab = 300;
    test::Random random(11);
    Bench b(random.normals(kVocab, 3));
    size_t n_free = 0, n_inside = 0, n_outside = 0;
    for (uint64_t position = 0; position < 4000; ++position) {
        if (position % 50 == 0) b.logits = random.normals(kVocab, 3);
        Sampling s;
        s.seed = 5;
        s.temperature = position % 4 == 0 ? 0.0f : 1.3f;
        s.top_k = position % 3 == 0 ? 12 : 0;
        s.top_p = position % 5 == 0 ? 0.8f : 1.0f;
        s.min_p = position % 7 == 0 ? 0.05f : 0.0f;
        std::vector<bool> all(kVocab, true), allowed(kVocab, false);
        std::vector<uint32_t> bits((kVocab + 31) / 32, 0);
        const uint32_t n_allowed = 1 + random.below(position % 2 ? 250 : 6);
        for (uint32_t i = 0; i < n_allowed; ++i) {
            const uint32_t id = random.below(kVocab);
            allowed[id] = true;
            bits[id / 32] |= 1u << (id % 32);
        }
        const Token free = b.sample(s, position);
        const Token id = b.sampler.sample_allowed(b.logits, s, position, {}, bits);
        REQUIRE(allowed[static_cast<size_t>(id)]);
        std::vector<bool> kept = kept_by_filters(b.logits, s, all);
        bool any = false;
        for (size_t i = 0; i < kVocab; ++i) any = any || (kept[i] && allowed[i]);
        if (!any) kept = kept_by_filters(b.logits, s, allowed);
        Token best = -1;
        float best_score = 0;
        for (uint32_t i = 0; i < kVocab; ++i) {
            if (!kept[i] || !allowed[i]) continue;
            const float score = is_greedy(s) ? b.logits[i] : b.logits[i] / s.temperature + gumbel(s.seed, position, i);
            if (best >= 0 && !(score > best_score)) continue;
            best = static_cast<Token>(i);
            best_score = score;
        }
        CHECK(id == best);
        if (allowed[static_cast<size_t>(free)]) CHECK(id == free);
        n_free += id == free;
        n_inside += id != free && any;
        n_outside += !any;
    }
    CHECK(n_free > 500);
    CHECK(n_inside > 500);
    CHECK(n_outside > 300);
}
