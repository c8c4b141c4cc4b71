// What a context and its host memory keep of many histories, without a model.
#include <set>

#include "allocations.h"
#include "prefix_rig.h"
#include "session_rig.h"

using namespace auspex;
using namespace auspex::detail;
using test::first;
using test::join;
using test::PrefixRig;
using test::text;

namespace {

constexpr uint64_t kState = 1000, kRow = 10;

PrefixOptions options(uint64_t n_state, size_t n_context = 2048) {
    PrefixOptions o;
    o.state_bytes = kState;
    o.row_bytes = kRow;
    o.n_context = n_context;
    o.budget_bytes = n_state * kState;
    return o;
}

}  // namespace

TEST_CASE("a history that goes on computes its new rows only") {
    PrefixRig rig(options(8));
    CHECK(rig.sync(text(1, 300)).rows_computed == 300);
    CHECK(rig.report.reason == SyncReason::new_text);
    for (int i = 0; i < 20; ++i) rig.generate(i);
    const std::vector<Token> said(rig.tree.tokens().begin(), rig.tree.tokens().end());
    CHECK(rig.sync(join(said, text(2, 30))).rows_computed == 30);
    CHECK(rig.report.reason == SyncReason::appended);
    CHECK(describe(rig.report) == "appended 30 to 320 rows");
}

TEST_CASE("a replaced token that was not computed is no appended one") {
    PrefixRig rig(options(8));
    rig.sync(text(1, 300));
    rig.tree.append(7);
    CHECK(rig.sync(join(text(1, 300), {8, 9})).rows_computed == 2);
    CHECK(rig.report.reason == SyncReason::resumed);
    CHECK(describe(rig.report) == "diverged at row 300 of 302: token 8 instead of 7; resumed at row 300");
}

TEST_CASE("the last row is computed again unless its logits are at hand") {
    PrefixRig rig(options(8));
    const std::vector<Token> a = text(1, 200);
    rig.sync(a, {{199, false}});
    CHECK(rig.sync(a).reason == SyncReason::unchanged);
    CHECK(rig.report.rows_computed == 0);
    PrefixReport report;
    REQUIRE(rig.tree.sync(a, {}, false).get(report).ok());
    CHECK(report.checkpoint_row == 199);
    CHECK(report.reason == SyncReason::resumed);
    rig.prefill();
    rig.check();
}

TEST_CASE("a title request costs its own rows, and parks what it overwrites") {
    PrefixRig rig(options(100, 4096));
    const std::vector<Token> agent = text(1, 3000);
    rig.sync(agent, {{1000, true}});
    rig.sync(text(2, 800), {{100, false}});
    CHECK(rig.report.rows_computed == 800);
    CHECK(rig.report.rows_parked == 800);
    CHECK(rig.store.n_parked == 800);
    CHECK(rig.tree.held_bytes() == 3 * kState + 800 * kRow);
    rig.sync(join(agent, text(3, 50)));
    CHECK(rig.report.rows_computed == 50);
    CHECK(rig.report.rows_restored == 800);
    CHECK(rig.report.reason == SyncReason::resumed);
    CHECK(rig.report.checkpoint_row == 3000);
}

TEST_CASE("two branches alternate without computing a row twice") {
    PrefixRig rig(options(100));
    std::vector<Token> a = join(text(1, 100), text(2, 700)), b = join(text(1, 100), text(3, 500));
    rig.sync(a, {{100, true}});
    rig.sync(b, {{100, true}});
    CHECK(rig.report.checkpoint_row == 100);
    for (int i = 0; i < 20; ++i) {
        a = join(a, text(10 + i, 9));
        b = join(b, text(40 + i, 7));
        CHECK(rig.sync(a).rows_computed == 9);
        CHECK(rig.sync(b).rows_computed == 7);
    }
}

TEST_CASE("two long branches by turns copy their new rows only") {
    PrefixRig rig(options(100, 4096));
    std::vector<Token> a = text(1, 2000), b = text(2, 1500);
    rig.sync(a);
    rig.sync(b);
    rig.sync(a);
    for (int i = 0; i < 10; ++i) {
        std::vector<Token>& next = i % 2 == 0 ? b : a;
        const size_t before = rig.store.n_parked;
        CHECK(rig.sync(next = join(next, text(10 + i, 50))).rows_computed == 50);
        CHECK(rig.report.rows_parked >= 1500);
        CHECK(rig.report.rows_restored >= 1500);
        CHECK(rig.store.n_parked - before <= 50 + 2 * kPrefixGrid);  // the blocks at both ends grow
    }
    CHECK(rig.tree.rows_copied() == rig.store.n_parked);
}

TEST_CASE("without room for spares all is kept that was kept before, and what fits of them saves its rows") {
    PrefixRig rig(options(34, 4096));  // about 35 would hold both branches and their states
    std::vector<Token> a = text(1, 2000), b = text(2, 1500);
    rig.sync(a);
    rig.sync(b);
    for (int i = 0; i < 10; ++i) {
        std::vector<Token>& next = i % 2 == 0 ? a : b;
        CHECK(rig.sync(next = join(next, text(10 + i, 50))).rows_computed == 50);
        CHECK(rig.tree.peak_bytes() < 34 * kState);
        CHECK(rig.report.n_failed == 0);
    }
    CHECK(rig.store.n_parked < rig.tree.rows_parked() * 3 / 4);
    CHECK(rig.store.n_parked > rig.tree.rows_parked() / 4);
    const uint64_t spare = rig.tree.spare_bytes();
    REQUIRE(spare > 0);
    for (int i = 0; i < 4; ++i) {
        b = join(b, text(30 + i, 10));
        rig.sync(b, {{b.size(), true}});
    }
    CHECK(rig.tree.spare_bytes() < spare);  // states take their place
    CHECK(rig.tree.n_failed() == 0);
    CHECK(rig.sync(join(a, text(90, 1))).rows_computed == 1);
}

TEST_CASE("a row that is written after it came back is parked again") {
    PrefixRig rig(options(100));
    const std::vector<Token> a = text(1, 512), b = text(2, 512);
    rig.sync(a);
    rig.sync(b);
    rig.sync(join(a, {1}));
    rig.store.draft(511, 77);
    rig.sync(join(b, {1}));
    rig.sync(join(a, {1, 2}));
    CHECK(rig.store.rows[511].draft == 77);
}

TEST_CASE("a history that comes token by token is parked and comes back in whole blocks") {
    PrefixRig rig(options(100, 4096));
    const std::vector<Token> agent = text(1, 1000);
    for (size_t n = 501; n <= agent.size(); ++n)
        REQUIRE(rig.sync(first(agent, n)).rows_reused == (n == 501 ? 0 : n - 1));
    rig.sync(text(2, 900));
    CHECK(rig.report.rows_parked == 900);
    CHECK(rig.store.blocks.size() == (900 + kPrefixGrid - 1) / kPrefixGrid);
    CHECK(rig.sync(join(agent, text(3, 5))).rows_computed == 5);
    CHECK(rig.report.rows_restored == 900);
}

TEST_CASE("an edit goes on from the nearest kept state, and the sentence says so") {
    PrefixRig rig(options(8));
    rig.sync(text(1, 1000), {{512, false}});
    rig.sync(join(first(text(1, 1000), 600), text(2, 40)));
    CHECK(rig.report.rows_computed == 640 - 512);
    CHECK(rig.report.diverged_at == 600);
    CHECK(rig.report.reason == SyncReason::checkpoint);
    CHECK(describe(rig.report)
              .find("diverged at row 600 of 640: token 200000 instead of 100600; nearest checkpoint "
                    "512") == 0);
}

TEST_CASE("a path that is left for the second time keeps a state where it was left") {
    PrefixRig rig(options(50));
    const std::vector<Token> a = text(1, 900);
    rig.sync(a, {{64, false}});
    const auto off = [&](int seed) {
        return rig.sync(join(first(a, 700), text(seed, 100)), {{64, false}}).rows_computed;
    };
    CHECK(off(2) == 736);
    CHECK(off(3) == 736);
    CHECK(off(4) == 160);  // from row 640, the grid row below
}

TEST_CASE("a long prefill keeps states at doubling distances from its end") {
    std::vector<size_t> rows;
    for (const Stop& s : plan_stops(PrefixPolicy::by_score, {0, 40000, 0, 64}, {})) rows.push_back(s.row);
    CHECK(rows == std::vector<size_t>{7232, 23616, 31808, 35904, 39936});
    CHECK(plan_stops(PrefixPolicy::by_score, {39000, 40000, 0, 64}, {}).size() == 1);
    CHECK(plan_stops(PrefixPolicy::none, {0, 40000, 0, 64}, {}).empty());
    const std::vector<Mark> marks{{100, true}, {700, false}, {900, false}};
    const std::vector<Stop> stops = plan_stops(PrefixPolicy::by_score, {200, 800, 640, 64}, marks);
    REQUIRE(stops.size() == 2);
    CHECK(stops[0].row == 640);
    CHECK(stops[0].kind == StateKind::junction);
    CHECK(stops[1].row == 700);
}

TEST_CASE("states that no mark asks for are not pinned, and a prefill of up to 8192 rows has none at distances") {
    for (const PrefixPolicy policy : {PrefixPolicy::by_score, PrefixPolicy::stride})
        for (const Stop& s : plan_stops(policy, {0, 9000, 0, 64}, {})) CHECK_FALSE(s.pinned);
    CHECK(plan_stops(PrefixPolicy::by_score, {6808, 15000, 0, 64}, {}).size() == 1);
    CHECK(plan_stops(PrefixPolicy::by_score, {6807, 15000, 0, 64}, {}).size() == 2);
}

TEST_CASE("a mark at the live tip keeps the state there, and one that was kept before counts as the mark's") {
    PrefixRig rig(options(100));
    using Rows = std::vector<std::pair<size_t, bool>>;
    const auto kept = [&] {
        Rows rows;
        for (const PrefixTree::StateInfo& s : rig.kept()) rows.push_back({s.row, s.pinned});
        return rows;
    };
    std::vector<Token> system = text(1, 300);
    rig.sync(system);
    rig.store.fail_at = rig.store.n_call + 1;
    CHECK(rig.sync(system, {{300, false}}).n_failed == 1);
    CHECK(kept() == Rows{});
    rig.sync(join(system, text(2, 20)), {{300, true}, {320, false}});
    CHECK(kept() == Rows{{300, true}, {320, false}});
    CHECK(rig.sync(join(system, text(3, 20)), {{300, true}}).rows_computed == 20);
    CHECK(rig.sync(join(system, text(3, 20)), {{320, true}}).reason == SyncReason::unchanged);
    CHECK(kept() == Rows{{300, true}, {320, false}, {320, true}});
    rig.sync(system = text(4, 300));
    for (const Token id : text(5, 212)) rig.generate(id);  // to a row at which it keeps a state of the reply
    system = join(system, text(5, 212));
    rig.sync(system, {{512, true}});
    rig.sync(join(system, text(6, 20)));
    CHECK(rig.sync(join(system, text(7, 20))).rows_computed == 20);
}

TEST_CASE("the score is rows saved per byte, less with age, four times for a tip, by how often its kind was used") {
    StateWorth w;
    w.gap = 100, w.age = 3, w.bytes = 50;
    CHECK(state_score(PrefixPolicy::by_score, w) == doctest::Approx(0.5));
    w.path_age = 1;
    CHECK(state_score(PrefixPolicy::by_score, w) == doctest::Approx(0.25));
    w.is_tip = true;
    CHECK(state_score(PrefixPolicy::by_score, w) == doctest::Approx(1));
    w.use_rate = 0.5;
    CHECK(state_score(PrefixPolicy::by_score, w) == doctest::Approx(0.5));
    CHECK(state_score(PrefixPolicy::stride, w) == doctest::Approx(0.25));
}

TEST_CASE("the use rate of a kind follows what was used lately") {
    UseRates rates;
    CHECK(rates.of(StateKind::tip) == 1);
    for (int i = 0; i < 9; ++i) rates.taken(StateKind::tip);
    CHECK(rates.of(StateKind::tip) == doctest::Approx(0.1));
    CHECK(rates.of(StateKind::junction) == 1);
    for (int i = 0; i < 1000; ++i) rates.taken(StateKind::tip), rates.used(StateKind::tip);
    CHECK(rates.of(StateKind::tip) > 0.9);
    for (int i = 0; i < 200; ++i) rates.taken(StateKind::tip);
    CHECK(rates.of(StateKind::tip) < 0.1);
}

TEST_CASE("a pin holds while its text is in use, and then counts as any other") {
    PrefixRig rig(options(4));
    rig.sync(text(1, 200), {{100, true}});
    CHECK(rig.tree.states().size() == 1);
    const auto pinned = [&] {
        size_t n = 0;
        for (const PrefixTree::StateInfo& s : rig.tree.states()) n += s.pinned ? 1 : 0;
        return n;
    };
    for (Token i = 0; i < 16; ++i) {
        rig.sync(text(2 + i, 300), {{200, false}});
        CHECK(pinned() == 1);
    }
    rig.sync(text(50, 300), {{200, false}});
    CHECK(pinned() == 0);
}

TEST_CASE("a history that comes token by token is one request, and ages no pin") {
    PrefixRig rig(options(4));
    rig.sync(text(1, 200), {{100, true}});
    for (size_t n = 300; n <= 400; ++n) rig.sync(first(text(2, 400), n));
    size_t n_pinned = 0;
    for (const PrefixTree::StateInfo& s : rig.tree.states()) n_pinned += s.pinned && s.age == 1;
    CHECK(n_pinned == 1);
}

TEST_CASE("of many system prompts only those that are asked for again stay pinned") {
    PrefixRig rig(options(100));
    const auto pinned = [&] {
        std::set<Token> seeds;
        for (const PrefixTree::StateInfo& s : rig.tree.states())
            if (s.pinned) seeds.insert(s.tokens[0] / 100000);
        return seeds;
    };
    rig.sync(text(1, 100), {{50, true}});
    rig.sync(text(2, 100), {{50, true}});
    CHECK(pinned() == std::set<Token>{1, 2});
    rig.sync(text(3, 100), {{50, true}});
    CHECK(pinned() == std::set<Token>{3});
    rig.sync(join(first(text(1, 100), 60), text(4, 10)));
    CHECK(pinned() == std::set<Token>{1, 2, 3});
    for (Token i = 5; i < 9; ++i) rig.sync(text(i, 100), {{50, true}});
    CHECK(pinned() == std::set<Token>{1, 8});
}

TEST_CASE("system prompts that nobody asks for again push no conversation out") {
    PrefixRig rig(options(8, 4096));
    std::vector<Token> agent = text(1, 1000);
    rig.sync(agent, {{800, true}, {1000, false}});
    for (Token i = 0; i < 10; ++i) rig.sync(text(2 + i, 80), {{50, true}, {80, false}});
    CHECK(rig.sync(join(agent, text(20, 50))).rows_computed == 50);
    // The time of day ends the system prompt: its state is never asked for, the one below it always.
    const std::vector<Token> rules = text(30, 1000);
    for (Token i = 0; i < 12; ++i) {
        const std::vector<Token> prompt = join(join(rules, text(31 + i, 10)), text(50, 100 + 20 * size_t(i)));
        rig.sync(prompt, {{1010, true}, {prompt.size(), false}});
        if (i >= 4) CHECK(rig.report.checkpoint_row == 960);
    }
}

TEST_CASE("the state with the lowest score is given up, a pinned one of a text in use last") {
    PrefixRig rig(options(3));
    std::vector<std::pair<size_t, uint64_t>> given_up;
    rig.tree.on_evict = [&](uint32_t item) {
        for (const PrefixTree::StateInfo& s : rig.tree.states())
            if (s.item == item) given_up.push_back({s.row, s.age});
    };
    // Gaps 10, 90, 500, 300: the pinned 10 stays, 90 has the lowest score.
    rig.sync(text(1, 1000), {{10, true}, {100, false}, {600, false}, {900, false}});
    CHECK(given_up == std::vector<std::pair<size_t, uint64_t>>{{100, 0}});
    std::set<size_t> rows;
    for (const PrefixTree::StateInfo& s : rig.tree.states()) rows.insert(s.row);
    CHECK(rows == std::set<size_t>{10, 600, 900});
}

TEST_CASE("a conversation that was pushed out is told so, whatever it has in common with the others") {
    for (const size_t n_common : {0u, 1u, 200u, 302u}) {
        CAPTURE(n_common);
        PrefixRig rig(options(9, 4096));
        const auto prompt = [&](int i) { return join(text(50, n_common), text(i, 600 - n_common)); };
        for (int i = 1; i <= 6; ++i) {
            rig.sync(prompt(i), {{300, true}, {600, false}});
            for (const Token id : text(10 + i, 20)) rig.generate(id);
        }
        // The state at the reply's end went, too, and this prompt does not have all of the reply.
        rig.sync(join(join(prompt(1), first(text(11, 20), 15)), text(20, 30)));
        CHECK(rig.report.known == 615);
        CHECK(rig.report.checkpoint_row <= 300);
        CHECK(rig.report.reason == SyncReason::given_up);
    }
}

TEST_CASE("many short prompts take no more memory than a few long ones") {
    PrefixRig rig(options(4, 64));
    const auto max_blocks = [&](Token begin, Token end) {
        int64_t n = 0;
        for (Token i = begin; i < end; ++i) {
            rig.sync({i, 1});
            n = std::max(n, test::n_held.load());
        }
        return n;
    };
    const int64_t n = max_blocks(0, 25000);  // what is forgotten makes room before that
    CHECK(max_blocks(25000, AUSPEX_TEST_SANITIZED ? 35000 : 60000) < n + 1000);
}

TEST_CASE("a budget below one state keeps nothing and still works") {
    PrefixOptions o = options(1);
    o.budget_bytes = kState - 1;
    PrefixRig rig(o);
    rig.sync(text(1, 500), {{100, true}});
    CHECK(rig.sync(text(2, 300)).reason == SyncReason::new_text);
    CHECK(rig.sync(text(1, 500)).rows_computed == 500);
    CHECK(rig.tree.peak_bytes() == 0);
    const int64_t held = test::n_held;  // nor the tokens of texts that were left
    for (Token i = 0; i < 20; ++i) rig.sync(text(3 + i, 500));
    CHECK(test::n_held == held);
}

TEST_CASE("the stride policy keeps 32 states, and no policy parks rows but the default") {
    PrefixOptions o = options(100, 4096);
    o.policy = PrefixPolicy::stride;
    PrefixRig rig(o);
    std::vector<Token> a = text(1, 10);
    for (int i = 0; i < 50; ++i) rig.sync(a = join(a, text(2 + i, 70)));
    CHECK(rig.tree.states().size() == 32);
    rig.sync(text(90, 100));
    CHECK(rig.store.n_parked == 0);
    CHECK(rig.tree.states().size() == 1);  // the rows of all others begin in those overwritten
    CHECK(rig.sync(a).rows_computed == a.size());
}

TEST_CASE("rows beyond the live tip stay in the context until something overwrites them") {
    PrefixRig rig(options(100));
    const std::vector<Token> a = text(1, 1500);
    rig.sync(a);
    rig.sync(first(a, 64));  // shorter: nothing is known at row 63
    rig.sync(text(2, 100));
    CHECK(rig.store.n_parked < 300);
    const size_t n = rig.store.n_parked;
    for (Token i = 0; i < 400; ++i) rig.generate(i);
    rig.check();
    CHECK(rig.store.n_parked > n);
    CHECK(rig.sync(join(a, text(3, 1))).rows_computed == 1);
}

TEST_CASE("a shortened step and rows written without room lose what rested on them") {
    PrefixRig rig(options(100));
    rig.sync(text(1, 300));
    for (Token i = 0; i < 8; ++i) rig.generate(i);
    CHECK_FALSE(rig.tree.step_back(309));
    REQUIRE(rig.tree.step_back(303));
    rig.tree.truncate(303);
    CHECK(rig.tree.n_row() == 303);
    CHECK(rig.tree.tokens().size() == 303);
    rig.tree.lose_context();
    CHECK(rig.tree.n_row() == 0);
    CHECK(rig.tree.states().empty());
    CHECK(rig.store.held == 0);
}

TEST_CASE("decoding a row allocates nothing") {
    PrefixRig rig(options(100));
    rig.sync(text(1, 300), {{100, true}});
    const int64_t before = test::n_allocation;
    for (Token i = 0; i < 500; ++i) rig.generate(i);
    CHECK(test::n_allocation == before);
}

namespace {

/// A prompt of 300 rows, and a reply to it of n.
void reply(PrefixRig& rig, size_t n) {
    rig.sync(text(1, 300), {{290, false}});
    for (const Token id : text(2, n)) rig.generate(id);
}

/// Rows of the states within generated texts.
std::vector<size_t> reply_rows(const PrefixRig& rig) {
    std::vector<size_t> rows;
    for (const PrefixTree::StateInfo& s : rig.tree.states())
        if (s.kind == StateKind::reply) rows.push_back(s.row);
    std::sort(rows.begin(), rows.end());
    return rows;
}

}  // namespace

TEST_CASE("states within a reply: a prompt that cuts the reply goes back to the last one before the cut") {
    PrefixRig brief(options(8)), rig(options(8));
    reply(brief, 500);
    CHECK(reply_rows(brief).empty());
    reply(rig, 1600);
    CHECK(reply_rows(rig) == std::vector<size_t>{832, 1344, 1856});
    const std::vector<Token> said(rig.tree.tokens().begin(), rig.tree.tokens().end());
    rig.sync(join(first(said, 1500), text(3, 10)));
    CHECK(rig.report.checkpoint_row == 1344);
    CHECK(rig.report.reason == SyncReason::checkpoint);
    CHECK(reply_rows(rig) == std::vector<size_t>{832, 1344});
    rig.sync(join(first(said, 1000), text(4, 10)));
    CHECK(rig.report.checkpoint_row == 832);
}

TEST_CASE("states within a reply go when a prompt goes on from its end, or elsewhere, or below them") {
    for (const size_t n : {size_t{1500}, size_t{310}, size_t{0}}) {
        CAPTURE(n);
        PrefixRig rig(options(8));
        reply(rig, 1200);
        CHECK(reply_rows(rig) == std::vector<size_t>{832, 1344});
        rig.sync(join(first({rig.tree.tokens().begin(), rig.tree.tokens().end()}, n), text(3, 10)));
        CHECK(reply_rows(rig).empty());
    }
}

TEST_CASE("states within a reply take each other's places before those of others") {
    PrefixRig rig(options(4));
    rig.sync(text(1, 300), {{150, true}, {290, false}});
    for (const Token id : text(2, 1700)) rig.generate(id);
    CHECK(reply_rows(rig).size() == 2);
    CHECK(reply_rows(rig).back() == 1856);
    CHECK(rig.tree.states().size() == 4);
}

TEST_CASE("without checkpoints, and by the stride policy, nothing is kept within a reply") {
    PrefixOptions o = options(8);
    o.policy = PrefixPolicy::stride;
    CHECK(PrefixRig(o).tree.next_reply_row(700) == SIZE_MAX);
    CHECK(PrefixRig(options(0)).tree.next_reply_row(700) == SIZE_MAX);
    CHECK(PrefixRig(options(1)).tree.next_reply_row(700) == 1024);
    // A new one is given up before others that are of use.
    PrefixRig rig(options(1));
    reply(rig, 1000);
    CHECK(reply_rows(rig).empty());
    CHECK(rig.tree.states().size() == 1);
}

namespace {

/// A random conversation tree: prompts that extend, edit and switch between earlier ones.
class Script {
  public:
    Script(PrefixRig& rig, uint64_t seed) : rig_(rig), random_(seed) {}

    /// One random operation. Its Status is that of a copy that failed.
    Status step() {
        const auto below = [&](size_t n) { return random_.below(static_cast<uint32_t>(n)); };
        if (below(4) == 0 && !rig_.kept().empty()) return check_a_state();
        std::vector<Token> wanted;
        if (!seen_.empty() && below(8) != 0) wanted = seen_[below(seen_.size())];
        if (below(3) == 0 && !wanted.empty()) wanted.resize(below(wanted.size()));
        const size_t n = below(3) == 0 ? 0 : below(200);
        for (size_t i = 0; i < n; ++i) wanted.push_back(static_cast<Token>(below(3)));
        if (wanted.size() > rig_.store.options.n_context - 70) wanted.resize(100);
        std::vector<Mark> marks;
        for (size_t i = below(3); i > 0; --i) marks.push_back({below(wanted.size() + 1), below(4) == 0});
        AUSPEX_TRY(run(wanted, marks));
        const size_t n_new = below(2) * below(60);
        for (size_t i = 0; i < n_new; ++i) rig_.generate(static_cast<Token>(below(3)));
        rig_.check();
        seen_.push_back({rig_.tree.tokens().begin(), rig_.tree.tokens().end()});
        if (seen_.size() > 12) seen_.erase(seen_.begin());
        return {};
    }

  private:
    Status run(const std::vector<Token>& wanted, const std::vector<Mark>& marks) {
        AUSPEX_TRY(rig_.begin(wanted, marks));
        rig_.prefill(1 + random_.below(90));
        rig_.check();
        return {};
    }
    /// A kept state is found again, whichever it is.
    Status check_a_state() {
        const std::vector<PrefixTree::StateInfo> all = rig_.kept();
        const PrefixTree::StateInfo& s = all[random_.below(static_cast<uint32_t>(all.size()))];
        std::vector<Token> wanted = s.tokens;
        wanted.push_back(1000 + n_asked_++);  // in no other history
        AUSPEX_TRY(run(wanted, {}));
        CHECK(rig_.report.checkpoint_row == s.row);
        return {};
    }
    PrefixRig& rig_;
    test::Random random_;
    std::vector<std::vector<Token>> seen_;
    Token n_asked_ = 0;
};

PrefixOptions random_options(test::Random& random) {
    PrefixOptions o = options(random.below(20), 512 + random.below(600));
    o.budget_bytes += random.below(1000);
    o.grid = random.below(2) == 0 ? 16 : 64;
    o.reply_stride = 1 + random.below(40);
    o.policy = random.below(5) == 0 ? PrefixPolicy::stride : PrefixPolicy::by_score;
    return o;
}

}  // namespace

TEST_CASE("random scripts: every kept state is found, over its own rows, within the budget, and the worst one goes") {
    for (uint64_t seed = 1; seed <= (test::deep() ? 2000 : 60); ++seed) {
        CAPTURE(seed);
        test::Random random(seed);
        PrefixRig rig(random_options(random));
        rig.tree.on_evict = [&](uint32_t item) {
            const std::vector<PrefixTree::StateInfo> all = rig.tree.states();
            const PrefixTree::StateInfo* victim = nullptr;
            for (const auto& s : all)
                if (s.item == item) victim = &s;
            REQUIRE(victim);
            for (const auto& s : all)  // age 0: about to be loaded
                if (s.age != 0 && s.pinned <= victim->pinned)
                    CHECK((s.pinned == victim->pinned && s.score >= victim->score));
        };
        Script script(rig, seed);
        for (int i = 0; i < 150; ++i) REQUIRE(script.step().ok());
        CHECK(rig.tree.n_failed() == 0);  // the budget was never in the way of a copy that had been decided
    }
}

TEST_CASE("random scripts: what is kept, and what is reported of it, is the same without spares") {
    size_t n_copied = 0, n_parked = 0;
    for (uint64_t seed = 1; seed <= (test::deep() ? 500 : 30); ++seed) {
        CAPTURE(seed);
        test::Random random(seed);
        const PrefixOptions o = random_options(random);
        PrefixRig rig(o), plain(o);
        plain.store.spares = false;
        Script script(rig, seed), same(plain, seed);
        for (int i = 0; i < 150; ++i) {
            REQUIRE(script.step().ok());
            REQUIRE(same.step().ok());
            CHECK(describe(rig.report) == describe(plain.report));
            CHECK(rig.tree.held_bytes() == plain.tree.held_bytes());
        }
        CHECK(rig.tree.peak_bytes() == plain.tree.peak_bytes());
        n_copied += rig.store.n_parked;
        n_parked += plain.store.n_parked;
    }
    CHECK(n_copied < n_parked);
}

TEST_CASE("random scripts: what is kept, and what is reported of it, is the same without recent states") {
    size_t n_recent = 0;
    for (uint64_t seed = 1; seed <= (test::deep() ? 500 : 30); ++seed) {
        CAPTURE(seed);
        test::Random random(seed);
        const PrefixOptions o = random_options(random);
        PrefixRig rig(o), plain(o);
        rig.tree.set_reply_stride(o.reply_stride, 1 + random.below(10));
        Script script(rig, seed), same(plain, seed);
        for (int i = 0; i < 150; ++i) {
            REQUIRE(script.step().ok());
            REQUIRE(same.step().ok());
            CHECK(describe(rig.report) == describe(plain.report));
            const std::vector<PrefixTree::StateInfo> kept = rig.kept(), want = plain.kept();
            REQUIRE(kept.size() == want.size());
            for (size_t k = 0; k < kept.size(); ++k)
                CHECK((kept[k].tokens == want[k].tokens && kept[k].kind == want[k].kind));
            n_recent += rig.tree.states().size() - kept.size();
        }
    }
    CHECK(n_recent > 100);
}

TEST_CASE("every copy may fail: a failed keep or park costs that item, a failed load or restore the live rows") {
    uint64_t n_ended = 0, n_went_on = 0;
    for (uint64_t fail_at = 1; fail_at <= (test::deep() ? 3000 : 300); ++fail_at) {
        CAPTURE(fail_at);
        test::Random random(fail_at % 7 + 1);
        PrefixRig rig(random_options(random));
        rig.store.fail_at = fail_at;
        Script script(rig, fail_at % 7);
        for (int i = 0; i < 60; ++i) {
            const uint64_t before = rig.store.n_call;
            const Status s = script.step();
            if (s.ok()) {
                if (before < fail_at && rig.store.n_call >= fail_at) {
                    ++n_went_on;
                    CHECK(rig.tree.n_failed() == 1);
                    CHECK(rig.tree.last_failure().text == "injected");
                }
                continue;
            }
            ++n_ended;
            CHECK(s.code == Code::device_lost);
            CHECK(rig.tree.n_row() == 0);
            CHECK(rig.tree.tokens().empty());
            rig.store.reset();
        }
    }
    CHECK(n_ended > 10);
    CHECK(n_went_on > 10);
}
