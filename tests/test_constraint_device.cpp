// Constrained texts in the device decode loop: the host's texts, token for token.
#include <doctest/doctest.h>

#ifndef AUSPEX_NO_VULKAN
#include "../tools/synthetic_acceptance.h"
#include "constraint_rig.h"

using namespace constraint_rig;

namespace {

/// One device for all tests here. Null where there is none.
const Device& device() {
    // Never destroyed: a driver's own exit handlers run before those of this program.
    static Device& one = *new Device;
    if (!one) one = gpu_device();
    return one;
}

struct Rig {
    std::vector<std::byte> bytes;
    Model model;
    Session host, device;

    explicit Rig(uint32_t run_ahead = 0, Draft source = Draft::mtp) {
        bytes = tiny_model(narrow());
        model = load_model(::device(), bytes);
        SessionOptions o;
        o.n_context = 256;
        o.n_ubatch = 64;
        o.draft.source = source;
        o.draft.depth = 0;
        host = test::open(model, o);
        host.impl()->host_only = true;
        o.run_ahead = run_ahead;
        device = test::open(model, o);
    }
    static std::vector<Token> text(Session& s, const Model& model, const Sampling& how, size_t n, int depth) {
        sync(s, {});
        s.clear_stats();
        REQUIRE(s.set_draft_depth(depth).ok());
        sync(s, tiny_ids(30, 7));
        return generated(s, model, how, n);
    }
    std::vector<Token> on_host(const Sampling& how, size_t n, int depth = 0) {
        return text(host, model, how, n, depth);
    }
    std::vector<Token> on_device(const Sampling& how, size_t n, int depth) {
        return text(device, model, how, n, depth);
    }
    /// The device's text with drafts from the text, all of which are those of `plain`.
    std::vector<Token> taught(const std::vector<Token>& plain, const Sampling& how, int depth) {
        device.impl()->sources.text.reset(new Truth(join(tiny_ids(30, 7), plain)));
        return on_device(how, plain.size(), depth);
    }
};

}  // namespace

TEST_CASE("a constrained text in the device loop is the host's, at every depth and with every sampling") {
    if (!device()) return;
    Rig rig(3);
    const std::vector<Constraint> all = constraints(rig.model);
    Sampling filtered = seeded(all[1], 5);
    filtered.top_k = 20;
    filtered.top_p = 0.9f;
    filtered.min_p = 0.02f;
    Sampling penalties = seeded(all[3], 8);
    penalties.repeat_penalty = 1.3f;
    penalties.min_p = 0.1f;
    Sampling biased = filtered, likely = constrained(all[2]);
    for (Token id = 0; id < 256; id += 2) biased.logit_bias.push_back({id, id % 3 == 0 ? -1.5f : 0.75f});
    likely.logit_bias = {{'3', 2}, {'3', 2}, {'r', 4}, {'g', -100}};
    std::vector<Sampling> ways{constrained(all[2]), filtered, seeded(all[0], 3, 1.5f), biased, likely};
    if (deep()) ways.insert(ways.end(), {penalties, constrained(all[1]), seeded(all[2], 2)});
    for (const Sampling& how : ways) {
        const size_t n = deep() ? 40 : 14;
        const std::vector<Token> plain = rig.on_host(how, n);
        for (int depth : {0, 1, 3, 8, -1}) {
            if (!deep() && depth != (how == filtered ? 8 : 3)) continue;
            CAPTURE(depth);
            CHECK(rig.on_device(how, n, depth) == plain);
        }
    }
}

TEST_CASE("a constrained text in the device loop is the host's with one draft, and with drafts from the text") {
    if (!device()) return;
    Rig rig, from_text(0, Draft::lookup);
    const size_t n = deep() ? 60 : 16;
    for (const size_t i : {size_t{1}, size_t{2}}) {
        CAPTURE(i);
        const Sampling how = seeded(constraints(rig.model)[i], i);
        const std::vector<Token> plain = rig.on_host(how, n);
        CHECK(rig.on_device(how, n, 1) == plain);
        CHECK(rig.device.stats().cycles[1] > 0);
        const Sampling same = seeded(constraints(from_text.model)[i], i);
        CHECK(from_text.on_device(same, n, 3) == plain);  // what the lookup finds
        if (!deep() && i == 1) continue;
        std::unique_ptr<DraftSource>& source = from_text.device.impl()->sources.text;
        std::unique_ptr<DraftSource> lookup = std::move(source);
        for (const int depth : {1, 3, 8, -1}) {
            if (!deep() && depth != 3) continue;
            CAPTURE(depth);
            CHECK(from_text.taught(plain, same, depth) == plain);
            if (!deep()) continue;
            // Some of the drafts are right, others are not.
            source.reset(new Teacher(join(tiny_ids(30, 7), plain), from_text.model.info().n_vocab, 3));
            CHECK(from_text.on_device(same, n, depth) == plain);
            if (depth > 0) CHECK(test::sum(from_text.device.stats().accepted, kMaxDraft) > 0);
        }
        source = std::move(lookup);
    }
}

TEST_CASE("thinking that ends at any row of a window leads to a tool call in the device loop, too") {
    if (!device()) return;
    Rig rig(0, Draft::lookup);
    for (unsigned n_thought = 0; n_thought <= kMaxDraft + 1; ++n_thought) {
        if (!deep() && n_thought % 4 != 2) continue;
        CAPTURE(n_thought);
        const Constraint c = gbnf(rig.model, "root ::= [a-z ]{" + std::to_string(n_thought) +
                                                 "} \"</think>\\n<tool_call>\\n<function=f>\\n\" [0-9]{1,3}");
        const Sampling how = seeded(c, n_thought);
        const std::vector<Token> plain = rig.on_host(how, deep() ? 60 : n_thought + 14);
        CHECK(text_of(rig.model, plain).find("</think>") == n_thought);
        CHECK(rig.taught(plain, how, 8) == plain);
        CHECK(test::sum(rig.device.stats().accepted, kMaxDraft) >= plain.size() / 2);
    }
}

TEST_CASE("text that a constraint forces is drafted for the device loop") {
    if (!device()) return;
    Rig rig;
    const Constraint c = gbnf(rig.model, "root ::= (\"{\\\"city\\\": \" [0-9] \", \\\"street\\\": \" [a-z] \"} \")+");
    for (const int depth : {3, 8, -1}) {
        if (!deep() && depth == -1) continue;
        CAPTURE(depth);
        const Sampling how = seeded(c, static_cast<uint64_t>(20 + depth));
        CHECK(rig.on_device(how, 60, depth) == rig.on_host(how, 60));
        const Stats stats = rig.device.stats();
        // The random block is hardly ever right about a token, the host about each that is forced, but for its cut.
        if (depth > 0) CHECK(test::sum(stats.accepted, kMaxDraft) >= 15);
    }
}

TEST_CASE("the device samples again at every row of a window, and goes on as the host does") {
    if (!device()) return;
    Rig rig;
    // Every draft counts as right, so that the refused token is that of one row.
    for (Session* s : {&rig.host, &rig.device}) tools::set_acceptance(*s, 1);
    const auto not_an_end = [&](Span<const Token>, Token id) { return !rig.model.is_end(id); };
    for (const uint64_t seed : {0u, 4u}) {
        const float temperature = seed == 0 ? 0.0f : 1.0f;
        const std::vector<Token> free = rig.on_host(seeded(rule(rig.model, not_an_end), seed, temperature), 10, 8);
        for (size_t row = 0; row <= kMaxDraft; ++row) {
            if (!deep() && row % 4 != (seed == 0 ? 0 : 2)) continue;
            CAPTURE(row);
            const Constraint c = rule(rig.model, [&](Span<const Token> text, Token id) {
                return !rig.model.is_end(id) && (text.size() != row + 1 || id != free[row + 1]);
            });
            const std::vector<Token> want = rig.on_host(seeded(c, seed, temperature), 13, 8);
            CHECK(want[row + 1] != free[row + 1]);
            CHECK(rig.on_device(seeded(c, seed, temperature), 13, 8) == want);
            const Stats stats = rig.device.stats();
            REQUIRE(stats.cycles[kMaxDraft] >= 2);
            // One cycle kept the drafts before the row and no more; a later one may stop at a token that ends a text.
            const uint64_t before = row > 0 ? stats.accepted[row - 1] : stats.cycles[kMaxDraft];
            CHECK(before > (row < kMaxDraft ? stats.accepted[row] : 0));
        }
    }
}

TEST_CASE("a constraint that begins or ends beside cycles that ran ahead changes no text") {
    if (!device()) return;
    Rig rig(5);
    const Constraint digits = gbnf(rig.model, "root ::= [0-9]{3}"), letters = gbnf(rig.model, "root ::= [a-f]{6}");
    Sampling free;
    free.temperature = 1;
    free.seed = 3;
    std::vector<Token> texts[2];
    for (Session* s : {&rig.host, &rig.device}) {
        sync(*s, {});
        sync(*s, tiny_ids(20, 2));
        REQUIRE(s->set_draft_depth(s == &rig.host ? 0 : 2).ok());
        const auto grown_to = [&](size_t n, const Sampling& how) {  // one token at a time on the host
            while (s->history().size() < n) REQUIRE(s->next(how).ok());
            sync(*s, history(*s, n));
        };
        grown_to(29, free);
        grown_to(31, constrained(digits));
        grown_to(36, free);
        std::vector<Token> six = generated(*s, rig.model, constrained(letters), 9);
        CHECK(six.size() == 7);
        grown_to(50, free);
        texts[s == &rig.device] = history(*s);
    }
    CHECK(texts[0].size() == texts[1].size());
    CHECK(first(texts[0], 43) == first(texts[1], 43));
}

TEST_CASE("a constraint that cannot go on is an error after the tokens before it, in the device loop, too") {
    if (!device()) return;
    Rig rig;
    const Constraint c = rule(rig.model, [](Span<const Token> text, Token id) { return text.size() < 6 && id < 256; });
    for (int depth : {0, 5, 8}) {
        CAPTURE(depth);
        Session& s = rig.device;
        sync(s, {});
        sync(s, tiny_ids(12, 3));
        REQUIRE(s.set_draft_depth(depth).ok());
        tools::set_acceptance(s, depth > 5 ? 1.0f : 0.0f);
        Status status;
        for (int i = 0; i < 20 && status.ok(); ++i) status = s.next(constrained(c)).status();
        CHECK(status.text.find("allows no token after 6 tokens") != std::string::npos);
        CHECK(s.next(constrained(c)).status().text == status.text);
        CHECK(s.history().size() == 18);
        const std::vector<Token> so_far = history(s);
        tools::set_acceptance(s, 0);
        more(s, 8);
        sync(rig.host, so_far);
        more(rig.host, 8);
        CHECK(history(s, 26) == history(rig.host, 26));
    }
}

TEST_CASE("a text that becomes too ambiguous ends at the same token in the device loop, too") {
    if (!device()) return;
    Rig rig;
    for (Session* s : {&rig.host, &rig.device}) {
        s->impl()->sources.text.reset(new Truth(std::vector<Token>(500, '(')));
        REQUIRE(s->set_draft_depth(s == &rig.device ? 8 : 0).ok());
        for (const bool wanted : {false, true}) check_too_ambiguous(*s, only_open(rig.model, wanted));
    }
}

TEST_CASE("after a constraint that cannot go on tokens can be taken back, in the device loop, too") {
    if (!device()) return;
    Rig rig;
    // The first token, and two cycles of three.
    const Constraint c = rule(rig.model, [](Span<const Token> text, Token id) { return text.size() < 7 && id < 256; });
    Session& s = rig.device;
    for (const int depth : {0, 2})
        for (const size_t n_back : {size_t{1}, size_t{2}, size_t{4}}) {
            CAPTURE(depth);
            CAPTURE(n_back);
            sync(s, {});
            sync(s, tiny_ids(12, 3));
            REQUIRE(s.set_draft_depth(depth).ok());
            tools::set_acceptance(s, 1);
            while (s.next(constrained(c)).ok()) {
            }
            tools::set_acceptance(s, 0);
            REQUIRE(s.history().size() == 19);
            sync(s, history(s, 19 - n_back));
            check_logits(s, rig.host);
        }
}

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
TEST_CASE("a rule that throws leaves through the call, and the device loop goes on as if it had not") {
    if (!device()) return;
    for (const Draft source : {Draft::lookup, Draft::mtp_lookup}) {
        Rig rig(0, source);
        REQUIRE(rig.device.set_draft_depth(4).ok());
        check_throwing_rule(rig.model, rig.device, rig.host);
    }
}
#endif

#endif  // AUSPEX_NO_VULKAN
