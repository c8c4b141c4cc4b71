// Tests of drafts made from the text beside those of the MTP block, on a virtual clock: no model, no device.
#include <doctest/doctest.h>

#include <cmath>

#include "../src/engine/controller.h"
#include "support.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

/// A stretch of text.
struct Phase {
    double block = 0;    ///< chance of a draft of the MTP block to be right
    double offered = 0;  ///< share of the cycles at whose beginning the text offers drafts
    uint32_t match = 0;  ///< their match
    double text = 0;     ///< chance of such a draft to be right
    uint32_t n_token = 0;
};

/// Time of a cycle, in plain steps.
struct Costs {
    double block_first = 1.48, text_first = 1.25, row = 0.25;
    double block_row = 0;    ///< of the block's drafts; 0: the same
    double first_cycle = 1;  ///< factor on the reported time of the first cycle with drafts from the text
    double of(uint32_t depth, bool from_text) const {
        const double further = from_text || block_row == 0 ? row : block_row;
        return depth == 0 ? 1 : (from_text ? text_first : block_first) + further * (depth - 1);
    }
};

class Machine {
  public:
    explicit Machine(Controller& control, const Costs& costs = {}, uint64_t seed = 1)
        : control_(control), costs_(costs), random_(seed) {}
    /// Plays it; returns its time in plain steps.
    double play(const Phase& phase) {
        double seconds = 0;
        for (uint32_t n = 0; n < phase.n_token;) {
            TextOffer offer;
            if (random_.below(1000) < phase.offered * 1000) offer = {kMaxDraft, phase.match};
            const Decision d = control_.next(100, UINT32_MAX, offer);
            if (d.probe_rows > 0) seconds += probe(d.probe_rows, phase.block);
            // One stream of luck for both sources: what would have been right of the offer is known afterwards.
            const uint32_t n_text = right(phase.text, kMaxDraft);
            DraftSeen seen;
            seen.depth = d.depth;
            seen.from_text = d.from_text;
            seen.accepted = d.from_text ? std::min(n_text, d.depth) : right(phase.block, d.depth);
            seen.context = 100;
            const double noise = 1 + 0.04 * (random_.below(1000) / 1000.0 - 0.5);
            seconds += costs_.of(d.depth, d.from_text) * noise;
            seen.seconds = costs_.of(d.depth, d.from_text) * noise * 1e-3;
            if (d.from_text && n_text_ == 0) seen.seconds *= costs_.first_cycle;
            const uint32_t n_new = seen.accepted + 1;
            if (offer.n > 0) {
                const uint32_t n_known = d.from_text ? d.depth : std::min(n_new, kMaxDraft);
                control_.observe_offer({n_known, offer.match}, n_known, std::min(n_text, n_known));
            }
            control_.observe(seen);
            n += n_new;
            n_text_ += d.from_text;
            ++n_cycle_;
        }
        return seconds;
    }
    uint32_t n_text_ = 0, n_cycle_ = 0;

  private:
    uint32_t right(double chance, uint32_t n_max) {
        uint32_t n = 0;
        while (n < n_max && random_.below(100000) < chance * 100000) ++n;
        return n;
    }
    double probe(uint32_t n, double chance) {
        AcceptanceProbe seen;
        seen.n = n;
        for (uint32_t i = 0; i < n; ++i)
            if (right(chance, 1) > 0) ++seen.hits, seen.order |= 1u << i;
        seen.seconds = 0.1e-3;
        control_.observe_acceptance_probe(seen);
        return 0.1;
    }

    Controller& control_;
    Costs costs_;
    Random random_;
};

/// Tokens per plain step of the best depth with such drafts.
double best_gain(double chance, bool from_text) {
    double best = 1, tokens = 1, survival = 1;
    for (uint32_t g = 1; g <= 6; ++g) {
        survival *= chance;
        tokens += survival;
        best = std::max(best, tokens / Costs().of(g, from_text));
    }
    return best;
}

}  // namespace

TEST_CASE("each source is used where it promises more") {
    struct Case {
        Phase phase;
        double min_share;  ///< of the gain that the better source alone gives
    };
    const Case cases[] = {
        {{0.5, 1, 20, 0.97, 4000}, 0.93},   // a text that copies
        {{0.9, 1, 20, 0.97, 4000}, 0.93},   // both are good: the cheaper one
        {{0.9, 1, 3, 0.3, 4000}, 0.95},     // the text's are bad
        {{0.2, 1, 3, 0.2, 4000}, 0.97},     // neither pays
        {{0.1, 0.5, 12, 0.95, 4000}, 0.9},  // offers now and then: plain steps between them
    };
    for (const Case& c : cases) {
        CAPTURE(c.phase.block);
        CAPTURE(c.phase.text);
        Controller control(6, 6);
        Machine machine(control, {}, 7);
        Phase warm = c.phase;
        warm.n_token /= 4;
        machine.play(warm);
        const double speed = c.phase.n_token / machine.play(c.phase);
        const double block = best_gain(c.phase.block, false), text = best_gain(c.phase.text, true);
        double best = std::max(block, text);
        if (c.phase.offered < 1 && text > block) {  // of all cycles a share: tokens over time
            double tokens = 1, survival = 1, gain = 1;
            for (uint32_t g = 1; g <= 6; ++g) {
                survival *= c.phase.text;
                tokens += survival;
                const double share = c.phase.offered;
                gain = std::max(gain, (share * tokens + (1 - share)) / (share * Costs().of(g, true) + (1 - share)));
            }
            best = gain;
        }
        CHECK(speed > c.min_share * best);
        CHECK(speed < 1.05 * best);
    }
}

TEST_CASE("drafts from the text cost less than 2 % where they are always wrong, and next to nothing later") {
    for (const uint32_t match : {2u, 8u, 32u, kForcedMatch}) {
        CAPTURE(match);
        Controller control(0, 6);
        Machine machine(control);
        const Phase wrong{0, 1, match, 0, 1500};
        const double first = machine.play(wrong), later = machine.play(wrong);
        CHECK(first < 1.02 * wrong.n_token);
        CHECK(later < 1.005 * wrong.n_token);
    }
}

TEST_CASE("a text that begins to copy is noticed within a few tokens, and its end too") {
    Controller control(6, 6);
    Machine machine(control);
    const Phase prose{0.2, 1, 2, 0.1, 600}, copy{0.2, 1, 20, 0.98, 120};
    machine.play(prose);
    double in_copy = 0, in_prose = 0;
    for (int i = 0; i < 10; ++i) {
        in_copy += machine.play(copy);
        in_prose += machine.play(prose);
    }
    CHECK(10 * copy.n_token / in_copy > 0.85 * best_gain(copy.text, true));
    CHECK(in_prose < 10 * prose.n_token * 1.02);
}

TEST_CASE("without an MTP block plain steps and drafts from the text are all there is") {
    Controller control(0, 4);
    Machine machine(control);
    const double speed = 3000 / machine.play({0, 1, 20, 0.97, 3000});
    CHECK(machine.n_text_ > 0.9 * machine.n_cycle_);
    CHECK(speed > 1.9);
    const DraftReport r = control.report();
    CHECK(r.cycles[5] + r.cycles[6] == 0);  // no deeper than allowed
    CHECK(r.relative_cost[4] == doctest::Approx(2.0).epsilon(0.05));
    CHECK(r.text_cycles == machine.n_text_);
    CHECK_FALSE(r.unprofitable);
    CHECK(r.n_probe == 0);
    CHECK(r.n_depth_change == 0);  // the block's
}

TEST_CASE("what is compared with drafts from the text does not grow old") {
    Controller control(6, 6);
    Machine before(control);
    before.play({0.3, 1, 20, 0.98, 3000});
    CHECK(before.n_text_ > 0.9 * before.n_cycle_);
    // The machine changes: rows of a step have become dear.
    Costs dear;
    dear.block_first = 4, dear.text_first = 4, dear.row = 3;
    Machine after(control, dear);
    after.play({0.3, 1, 20, 0.98, 600});
    const uint32_t n = after.n_text_;
    after.play({0.3, 1, 20, 0.98, 3000});
    CHECK(after.n_text_ - n < 30);
}

TEST_CASE("a cost that was once too high is measured again") {
    Controller control(6, 6);
    Costs slow;
    slow.text_first = 3;  // as if its kernels had just been made
    slow.row = 0.6;
    Machine before(control, slow);
    before.play({0.9, 1, 20, 0.97, 400});
    Costs fair;
    Machine after(control, fair);
    after.play({0.9, 1, 20, 0.97, 3000});
    const uint32_t n_text = after.n_text_, n_cycle = after.n_cycle_;
    after.play({0.9, 1, 20, 0.97, 1000});
    CHECK(after.n_text_ - n_text > 0.9 * (after.n_cycle_ - n_cycle));
}

TEST_CASE("a cost that was once too high is measured again without an MTP block, too") {
    Controller control(0, 6);
    Costs slow;
    slow.text_first = 8;
    slow.row = 2;
    const Phase copy{0, 1, 20, 0.97, 4000};
    Machine before(control, slow);
    CHECK(before.play(copy) < 1.02 * copy.n_token);
    CHECK(before.n_text_ > 0);
    Machine after(control);
    after.play(copy);
    const uint32_t n_text = after.n_text_, n_cycle = after.n_cycle_;
    after.play(copy);
    CHECK(after.n_text_ - n_text > 0.9 * (after.n_cycle_ - n_cycle));
}

TEST_CASE("a cost that was once too high is measured again beside an MTP block that cannot pay, too") {
    Controller control(6, 6);
    Costs slow;
    slow.text_first = 8;
    slow.row = 2;
    slow.block_first = 2.6;
    Costs fair;
    fair.block_first = 2.6, fair.block_row = 1.3;
    const Phase copy{0, 1, 20, 0.97, 4000};
    Machine before(control, slow);
    before.play({0, 1, 20, 0.97, 400});
    CHECK(before.n_text_ > 0);
    Machine after(control, fair);
    after.play(copy);
    const uint32_t n_text = after.n_text_, n_cycle = after.n_cycle_;
    after.play(copy);
    CHECK(after.n_text_ - n_text > 0.9 * (after.n_cycle_ - n_cycle));
}

TEST_CASE("where the first cycle with drafts from the text is slow, whatever the factor, they go on") {
    for (const double factor : {5.0, 20.0, 1000.0}) {
        CAPTURE(factor);
        Controller control(0, 6);
        Costs costs;
        costs.first_cycle = factor;
        Machine machine(control, costs);
        machine.play({0, 1, 20, 0.97, 1000});
        CHECK(machine.n_text_ > 0.9 * machine.n_cycle_);
    }
}

TEST_CASE("drafts from the text go on where the block's best depth was never run") {
    Costs costs;
    costs.block_first = 1.5, costs.text_first = 1.4;
    costs.row = 0.3;
    const TextOffer offer{6, 20};
    Controller control(6, 6);
    const auto run = [&](Controller& c, const TextOffer& offered) {
        const Decision d = c.next(100, UINT32_MAX, offered);
        DraftSeen seen;
        seen.depth = seen.accepted = d.depth;
        seen.from_text = d.from_text;
        seen.seconds = 1e-3 * costs.of(d.depth, d.from_text);
        seen.context = 100;
        c.observe_offer(offer, 6, 6);
        c.observe(seen);
        return d;
    };
    // Until just before the block's first cycle of six drafts the cycles are queued ahead: no offer is known.
    for (uint32_t i = 0; i < 200; ++i) {
        Controller ahead = control;
        if (run(ahead, TextOffer()).depth == 6) break;
        control = ahead;
    }
    REQUIRE(control.report().n_sample[6] == 0);
    uint32_t n_text = 0;
    for (uint32_t i = 0; i < 60; ++i) n_text += run(control, offer).from_text;
    CHECK(n_text > 50);
}

TEST_CASE("plain steps that take long now and then do not keep drafts from the text out later") {
    for (const uint32_t gap : {0u, 100u, 20u}) {
        CAPTURE(gap);
        Controller control(0, 6);
        uint32_t n_text = 0, n_cycle = 0;
        for (uint32_t n_token = 0; n_token < 4000; ++n_cycle) {
            const bool copies = n_token >= 2000;
            const Decision d = control.next(100, UINT32_MAX, copies ? TextOffer{6, 20} : TextOffer());
            DraftSeen seen;
            seen.depth = seen.accepted = d.depth;
            seen.from_text = d.from_text;
            seen.seconds = 1e-3 * (1 + 0.1 * d.depth) * (gap > 0 && n_cycle % gap == gap / 2 ? 10 : 1);
            seen.context = 100;
            const uint32_t n_known = std::max(d.depth, 1u);
            if (copies) control.observe_offer({n_known, 20}, n_known, n_known);
            control.observe(seen);
            n_token += 1 + seen.accepted;
            n_text += d.from_text;
        }
        CHECK(n_text > 0.9 * (n_cycle - 2000));
    }
}

TEST_CASE("costs of both sources are kept and come back") {
    Controller control(6, 6);
    Machine machine(control);
    machine.play({0.7, 0.5, 20, 0.97, 3000});
    const std::vector<std::byte> costs = control.save_costs();
    Controller other(6, 6);
    REQUIRE(other.load_costs(costs).ok());
    CHECK(other.save_costs().size() == costs.size());
    // No cold start, and drafts from the text as soon as they have shown their worth.
    Machine again(other);
    CHECK(400 / again.play({0.7, 1, 20, 0.97, 400}) > 0.8 * best_gain(0.97, true));
}
