// Tests of engine/controller over many replies, contexts and processes, without noise: what it must not lose again and
// again, and what must not keep drafting off for good.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "../src/engine/controller.h"

using namespace auspex;
using namespace auspex::detail;

namespace {

/// R(g) = first + slope (g - 1). An acceptance probe takes `probe` plain steps.
struct Machine {
    std::string name;
    double first, slope, probe;
    double plain = 0.02;  ///< seconds
    double seconds(uint32_t g) const { return g == 0 ? plain : plain * (first + slope * (g - 1)); }
};
const Machine kDense{"dense", 1.20, 0.15, 0.02}, kTrimmed{"trimmed head", 1.37, 0.35, 0.10},
    kDemo{"demo", 1.48, 0.38, 1.7}, kMoe{"MoE", 1.69, 0.49, 0.15};

/// A reply. Whether the draft of a token is right is the same for every policy.
struct Reply {
    uint32_t i = 0, n_token = 0;
    double chance = 0;
    uint32_t context = 600;
    bool right(uint32_t token) const {
        uint64_t z = (uint64_t{i} << 32 | token) + 0x9E3779B97F4A7C15u;  // splitmix64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return static_cast<double>((z ^ (z >> 31)) >> 11) < chance * 9007199254740992.0;
    }
    uint32_t accepted(uint32_t token, uint32_t depth) const {
        uint32_t n = 0;
        while (n < depth && right(token + n)) ++n;
        return n;
    }
};

struct Played {
    double seconds = 0;
    uint32_t n_cycle = 0, n_drafting = 0;
};
/// Adds to `sum` what the reply takes with this controller.
void play(Controller& c, const Machine& m, const Reply& reply, Played* sum) {
    for (uint32_t at = 0; at < reply.n_token;) {
        const Decision d = c.next(reply.context + at);
        AcceptanceProbe probe;
        probe.n = d.probe_rows;
        for (uint32_t k = 0; k < probe.n; ++k)
            if (reply.right(at - probe.n + k)) ++probe.hits, probe.order |= 1u << k;
        if (probe.n > 0) {
            probe.seconds = m.plain * m.probe;
            c.observe_acceptance_probe(probe);
        }
        DraftSeen seen;
        seen.depth = d.depth, seen.accepted = reply.accepted(at, d.depth), seen.seconds = m.seconds(d.depth),
        seen.context = reply.context + at;
        c.observe(seen);
        at += seen.accepted + 1;
        sum->seconds += seen.seconds + probe.seconds;
        ++sum->n_cycle;
        sum->n_drafting += d.depth > 0;
    }
}
double seconds_at(uint32_t depth, const Machine& m, const Reply& reply) {
    double seconds = 0;
    for (uint32_t at = 0; at < reply.n_token; at += reply.accepted(at, depth) + 1) seconds += m.seconds(depth);
    return seconds;
}

/// Speed in the second half of 600 replies of one session.
struct Speed {
    double over_off = 0, share_of_best = 0;  ///< of the best fixed depth
};
Speed many_replies(const Machine& m, uint32_t n_token, double chance) {
    constexpr uint32_t kReplies = 600;
    Controller c(6);
    Played own;
    double fixed[7] = {};
    for (uint32_t i = 0; i < kReplies; ++i) {
        const Reply reply{i, n_token, chance};
        c.new_text();
        if (i == kReplies / 2) own = Played();
        play(c, m, reply, &own);
        for (uint32_t g = 0; g <= 6 && i >= kReplies / 2; ++g) fixed[g] += seconds_at(g, m, reply);
    }
    return {fixed[0] / own.seconds, *std::min_element(fixed, fixed + 7) / own.seconds};
}

}  // namespace

TEST_CASE("many short replies on which drafting does not pay are not slower by 2 %, however often a text begins") {
    const struct {
        Machine machine;
        uint32_t n_token;
        double chance;
    } cases[] = {{kDense, 10, 0.05}, {kDense, 12, 0.10}, {kDense, 20, 0.15}, {kTrimmed, 10, 0.05}, {kDemo, 10, 0.30}};
    for (const auto& k : cases) {
        CAPTURE(k.machine.name);
        CAPTURE(k.n_token);
        CHECK(many_replies(k.machine, k.n_token, k.chance).over_off > 0.98);
    }
}

TEST_CASE("replies shorter than the rows of an acceptance probe find that drafting pays") {
    const Speed of_10 = many_replies(kMoe, 10, 0.90), of_14 = many_replies(kMoe, 14, 0.98);
    CHECK(of_10.over_off > 1.05);
    CHECK(of_10.share_of_best > 0.9);
    CHECK(of_14.over_off > 1.3);
    CHECK(of_14.share_of_best > 0.9);
    // And they do not probe too often where it does not.
    CHECK(many_replies(kMoe, 10, 0.30).over_off > 0.985);
}

TEST_CASE("where no draft can pay, contexts of two lengths by turns do not bring a cold start each") {
    Machine brief{"a row costs 1.15 steps", 2.3, 1.15, 0.05}, lengthy = brief;
    lengthy.plain = 0.029;
    Controller c(6);
    Played own;
    double off = 0;
    for (uint32_t i = 0; i < 200; ++i) {
        const Machine& m = i % 2 ? lengthy : brief;
        const Reply reply{i, 60, 0.3, i % 2 ? 30000u : 500u};
        c.new_text();
        play(c, m, reply, &own);
        off += seconds_at(0, m, reply);
    }
    CHECK(off / own.seconds > 0.98);
    CHECK(own.n_drafting < 120);  // of 12000 cycles
    CHECK(c.report().unprofitable);
}

TEST_CASE("costs that were saved while drafts were dear do not keep drafting off in later processes") {
    Machine busy = kTrimmed;  // drafts add four times as much
    busy.first = 2.48, busy.slope = 1.40;
    for (const uint32_t n_token : {290u, 8000u}) {  // in one octave of context, and in four
        CAPTURE(n_token);
        std::vector<std::byte> saved;
        for (uint32_t i = 0; i < 5; ++i) {
            CAPTURE(i);
            Controller c(6);
            if (i > 0) REQUIRE(c.load_costs(saved).ok());
            const Reply reply{i, n_token, 0.9, 300};
            const Machine& m = i == 0 ? busy : kTrimmed;
            Played own;
            play(c, m, reply, &own);
            saved = c.save_costs();
            CHECK(c.report().unprofitable == (i == 0));
            if (i > 0) CHECK(seconds_at(3, m, reply) / own.seconds > 0.9);
        }
    }
}

TEST_CASE("where no draft can pay, measuring saved costs again stays within what drafting may lose") {
    const Machine m{"a row costs 1.15 steps", 2.3, 1.15, 0.05};
    std::vector<std::byte> saved;
    for (uint32_t i = 0; i < 5; ++i) {
        CAPTURE(i);
        Controller c(6);
        if (i > 0) REQUIRE(c.load_costs(saved).ok());
        const Reply reply{i, 1000, 0.3, 300};
        Played own;
        play(c, m, reply, &own);
        saved = c.save_costs();
        CHECK(c.report().unprofitable);
        CHECK(own.seconds < seconds_at(0, m, reply) + (12 + 10) * m.plain);  // a dozen, and 1 %
    }
}

TEST_CASE("after replies on which drafting does not pay, one that drafts suit has them soon") {
    struct {
        Machine machine;
        uint32_t n_token;
        double chance;
    } cases[] = {{kMoe, 20, 0.30}, {kMoe, 10, 0.40}, {kTrimmed, 20, 0.30}};
    for (const auto& k : cases) {
        CAPTURE(k.machine.name);
        CAPTURE(k.n_token);
        for (uint32_t seed = 0; seed < 20; ++seed) {
            CAPTURE(seed);
            Controller c(6);
            Played bad, good;
            for (uint32_t i = 0; i < 300; ++i) {
                c.new_text();
                play(c, k.machine, {1000 * seed + i, k.n_token, k.chance}, &bad);
            }
            c.new_text();
            play(c, k.machine, {1000 * seed + 999, 200, 0.97}, &good);
            CHECK(good.n_drafting > 0);
        }
    }
}
