// Constrained texts: what the constraint allows, and the same with every draft source at every depth.
#include <doctest/doctest.h>

#include "../src/base/json.h"
#include "../src/grammar/automaton.h"
#include "../src/grammar/interface.h"
#include "constraint_rig.h"

using namespace constraint_rig;
using namespace draft_rig;

namespace {

/// What the grammar says of a text: complete, or a beginning of one.
struct Verdict {
    bool complete, begins;
};
Verdict judge(const Constraint& c, std::string_view text) {
    Automaton a(c.impl()->grammar.impl()->rules);
    StateId s = a.start();
    for (const char b : text) s = a.step(s, static_cast<unsigned char>(b));
    return {a.accepting(s), s != kDead};
}

std::vector<Token> text_with(const Model& model, Setup setup, const std::vector<Token>& prompt, size_t n,
                             const Sampling& sampling, Stats* stats = nullptr) {
    Session session = draft_rig::open(model, std::move(setup));
    sync(session, prompt);
    std::vector<Token> out = generated(session, model, sampling, n);
    if (stats) *stats = session.stats();
    return out;
}

/// A text whose states exceed their memory when token number n_max is refused, as those of a grammar may.
class Limited : public TextState {
  public:
    Limited(size_t n, size_t n_max) : n_(n), n_max_(n_max) {}
    bool accept(Token) override {
        over_ = n_ == n_max_;
        n_ += !over_;
        return !over_;
    }
    void rollback(size_t n) override {
        n_ -= n;
        over_ = false;
    }
    void mask(Span<uint32_t>) override {}
    Status status() const override { return over_ ? Status(Code::unsupported, "the states take too much") : Status(); }
    bool ended() const override { return false; }

  private:
    size_t n_, n_max_;
    bool over_ = false;
};

/// The state of a session's text, which only a grammar of 256 MiB of states would bring to its limit.
template <std::unique_ptr<TextState> ConstrainedText::*kState>
struct StateOf {
    friend std::unique_ptr<TextState>& state_of(ConstrainedText& text) { return text.*kState; }
};
std::unique_ptr<TextState>& state_of(ConstrainedText& text);
template struct StateOf<&ConstrainedText::state_>;

std::vector<Sampling> ways(const Constraint& c) {
    Sampling hot = seeded(c, 3, 2);
    Sampling filtered = seeded(c, 5);
    filtered.top_k = 20;
    filtered.top_p = 0.9f;
    filtered.min_p = 0.02f;
    Sampling penalties = seeded(c, 8);
    penalties.repeat_penalty = 1.3f;
    penalties.presence_penalty = 0.5f;
    return {constrained(c), hot, filtered, penalties};
}

}  // namespace

TEST_CASE("a constrained text is the same at every depth, from every source, with every sampling") {
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(40, 12);
    uint64_t n_accepted = 0, n_rejected = 0;
    for (const Constraint& c : constraints(tiny.model)) {
        for (const Sampling& sampling : ways(c)) {
            const std::vector<Token> plain = text_with(tiny.model, {}, prompt, 90, sampling);
            const Verdict v = judge(c, text_of(tiny.model, plain));
            CHECK(v.begins);
            CHECK((v.complete || !tiny.model.is_end(plain.back())));
            const auto same = [&](Setup setup) {
                Stats stats;
                CHECK(text_with(tiny.model, std::move(setup), prompt, 90, sampling, &stats) == plain);
                n_accepted += sum(stats.accepted, kMaxDraft);
                n_rejected += sum(stats.drafted, kMaxDraft) - sum(stats.accepted, kMaxDraft);
            };
            for (int depth : {0, 1, 3, 8, -1}) same(with(Draft::mtp, depth));
            same(with(Draft::lookup, 5));
            same(with(Draft::mtp_lookup, 4));
            for (uint64_t seed = 1; seed <= 2; ++seed) {  // the true text with one error
                Setup taught = with(Draft::lookup, 8);
                taught.text_source.reset(new Teacher(join(prompt, plain), kTinyVocab, seed));
                same(std::move(taught));
            }
        }
    }
    CHECK(n_accepted > 500);
    CHECK(n_rejected > 500);
}

TEST_CASE("refusals at every row of a window change no text") {
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(30, 4);
    for (size_t row = 0; row <= kMaxDraft; row += AUSPEX_TEST_SANITIZED ? 4 : 1)
        for (const size_t every : {size_t{1000}, size_t{1}, size_t{4}}) {
            const Constraint c = refusing(tiny.model, row + 1, every);
            for (const Sampling& sampling : {constrained(c), seeded(c, 2)}) {
                const std::vector<Token> plain = text_with(tiny.model, {}, prompt, 24, sampling);
                CHECK(plain[row + 1] % 7 == 3);
                Setup all_right = with(Draft::lookup, 8);  // drafts the text that would come without the refusals
                Sampling free = sampling;
                free.constraint = rule(tiny.model, [](Span<const Token>, Token id) { return id < 256; });
                const std::vector<Token> unhindered = text_with(tiny.model, {}, prompt, 24, free);
                all_right.text_source.reset(new Truth(join(prompt, unhindered)));
                CHECK(text_with(tiny.model, std::move(all_right), prompt, 24, sampling) == plain);
                CHECK(text_with(tiny.model, with(Draft::mtp, 8), prompt, 24, sampling) == plain);
            }
        }
}

TEST_CASE("text that the constraint leaves no choice about is drafted, and changes no text") {
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(30, 4);
    const Constraint c =
        gbnf(tiny.model, "root ::= \"{\\\"temperature in the room\\\": \" [0-9]+ \", \\\"unit\\\": \\\"kelvin\\\"}\"");
    for (const Sampling& sampling : {constrained(c), seeded(c, 6)}) {
        const std::vector<Token> plain = text_with(tiny.model, {}, prompt, 80, sampling);
        const auto forced_share = [&](Setup setup) {
            Stats stats;
            CHECK(text_with(tiny.model, std::move(setup), prompt, 80, sampling, &stats) == plain);
            return static_cast<double>(sum(stats.accepted, kMaxDraft)) / static_cast<double>(plain.size());
        };
        Setup silent = with(Draft::lookup, 8);  // a source that has nothing to say: what is accepted was forced
        silent.text_source.reset(new Truth({}));
        CHECK(forced_share(std::move(silent)) > 0.15);
        forced_share(with(Draft::mtp, 8));
    }
}

TEST_CASE("thinking that ends at any row of a window leads to a tool call") {
    const Tiny tiny;
    const std::vector<Token> prompt = tiny_ids(30, 6);
    for (unsigned n_thought = 0; n_thought <= 9; ++n_thought) {
        const Constraint c = gbnf(tiny.model, "root ::= [a-z ]{" + std::to_string(n_thought) +
                                                  "} \"</think>\\n<tool_call>\\n<function=f>\\n<parameter=x>\\n\" "
                                                  "[0-9]{1,3} \"\\n</parameter>\\n</function>\\n</tool_call>\"");
        const Sampling sampling = seeded(c, n_thought);
        const std::vector<Token> plain = text_with(tiny.model, {}, prompt, 200, sampling);
        REQUIRE(tiny.model.is_end(plain.back()));
        Setup taught = with(Draft::lookup, 8);
        taught.text_source.reset(new Truth(join(prompt, plain)));
        CHECK(text_with(tiny.model, std::move(taught), prompt, 200, sampling) == plain);
        const auto reply = parse_reply(text_of(tiny.model, plain), true, {});
        REQUIRE(reply.ok());
        REQUIRE(reply.value().tool_calls.size() == 1);
        CHECK(reply.value().tool_calls[0].name == "f");
    }
}

TEST_CASE("replies of a random model under tools parse as calls, or were cut short") {
    const Tiny tiny;
    const std::string tool = R"({"name": "set", "parameters": {"type": "object", "properties": {
        "on": {"type": "boolean"}, "level": {"type": "integer", "minimum": 0, "maximum": 9},
        "mode": {"enum": ["a", "b"]}}, "required": ["on", "mode"]}})";
    ToolOptions options;
    options.choice = ToolChoice::required;
    options.parallel = false;
    const Constraint c = constraint(tiny.model, Grammar::from_tools({tool}, options));
    size_t n_call = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
        const std::vector<Token> ids =
            text_with(tiny.model, with(Draft::mtp, 3), tiny_ids(20, seed), 300, seeded(c, seed));
        const std::string text = text_of(tiny.model, ids);
        CHECK(judge(c, text).begins);
        const auto reply = parse_reply(text, false, {tool});
        REQUIRE(reply.ok());
        if (tiny.model.is_end(ids.back())) CHECK(reply.value().tool_calls.size() == 1);
        n_call += reply.value().tool_calls.size();
    }
    CHECK(n_call > 0);
}

TEST_CASE("every sample of a random model parses and validates, or was cut short within a valid text") {
    TinyOptions flat = slim();
    flat.scale = 0.3f;
    const std::vector<std::byte> bytes = tiny_model(flat);
    const Model model = load_model(cpu_device(), bytes);
    size_t n_complete = 0;
    for (const Constraint& c : constraints(model)) {
        Session session = draft_rig::open(model, with(Draft::mtp, 2));
        for (uint64_t seed = 1; seed <= (deep() ? 200 : 15); ++seed) {
            sync(session, tiny_ids(12, 9));
            const std::vector<Token> ids = generated(session, model, seeded(c, seed, seed % 2 ? 1.0f : 2.0f), 80);
            const std::string text = text_of(model, ids);
            const Verdict v = judge(c, text);
            CHECK(v.begins);
            const bool ended = model.is_end(ids.back());
            CHECK((v.complete || !ended));
            n_complete += ended;
        }
    }
    CHECK(n_complete > 20);
}

TEST_CASE("samples of a schema hold what the schema says") {
    const Tiny tiny;
    const Constraint c = constraints(tiny.model)[2];
    size_t n_complete = 0;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        const std::vector<Token> ids = text_with(tiny.model, {}, tiny_ids(20, seed), 250, seeded(c, seed));
        if (!tiny.model.is_end(ids.back())) continue;
        ++n_complete;
        const std::string text = text_of(tiny.model, ids);
        Json json;
        REQUIRE_MESSAGE(Json::parse(text).get(json).ok(), text);
        REQUIRE(json.is(Json::Kind::object));
        const Json *name = json.find("name"), *age = json.find("age"), *tags = json.find("tags"),
                   *sure = json.find("sure");
        REQUIRE((name && age && tags && sure));
        CHECK(name->is(Json::Kind::string));
        CHECK(name->text().size() <= 4 * 12);
        CHECK(std::stoi(age->text()) <= 150);
        CHECK(tags->items().size() >= 1);
        CHECK(tags->items().size() <= 4);
        CHECK(sure->is(Json::Kind::boolean));
    }
    CHECK(n_complete > 3);
}

TEST_CASE("a complete text ends, and next() says so when it is called again") {
    const Tiny tiny;
    const Constraint c = gbnf(tiny.model, "root ::= \"on\" \"e\"");
    for (int depth : {0, 8}) {
        Session session = draft_rig::open(tiny.model, with(Draft::mtp, depth));
        const std::vector<Token> prompt = tiny_ids(9, 1);
        sync(session, prompt);
        const std::vector<Token> out = generated(session, tiny.model, constrained(c), 20);
        CHECK(text_of(tiny.model, out) == "one");
        REQUIRE(tiny.model.is_end(out.back()));
        const auto again = session.next(constrained(c));
        CHECK(again.status().code == Code::bad_argument);
        CHECK(again.status().text.find("has ended") != std::string::npos);
        CHECK(history(session) == join(prompt, out));
        CHECK(session.next({}).ok());  // without it the text goes on
        sync(session, join(prompt, out));
        sync(session, join(join(prompt, out), {5, 6}));  // another turn: the text begins anew
        CHECK(text_of(tiny.model, generated(session, tiny.model, constrained(c), 20)) == "one");
    }
}

TEST_CASE("a text goes on after tokens were taken back, in a fork, on another model, and from a file") {
    const Tiny tiny;
    const Constraint c = constraints(tiny.model)[2];
    const Sampling sampling = seeded(c, 4);
    const std::vector<Token> prompt = tiny_ids(25, 3);
    const std::vector<Token> whole = text_with(tiny.model, {}, prompt, 60, sampling);
    Session session = draft_rig::open(tiny.model, with(Draft::mtp, 2));
    sync(session, prompt);
    const auto goes_on = [&](Session& s, const Sampling& how) {
        const size_t has = s.history().size() - prompt.size();
        REQUIRE(has < 40);
        std::vector<Token> out = generated(s, tiny.model, how, 60 - has);
        CHECK(std::equal(out.begin(), out.end(), whole.begin() + static_cast<std::ptrdiff_t>(has)));
    };
    more(session, 20, sampling);
    sync(session, join(prompt, first(whole, 11)));  // tokens are taken back
    Session fork;
    REQUIRE(session.fork().get(fork).ok());
    goes_on(fork, sampling);
    Sampling placed = sampling;
    placed.constrained_from = prompt.size();
    const auto snapshot = session.save();
    REQUIRE(snapshot.ok());
    Session other = draft_rig::open(tiny.model, with(Draft::mtp, 1));
    REQUIRE(other.restore(snapshot.value()).ok());
    goes_on(other, placed);
    const Model copy = load_model(cpu_device(), tiny.bytes);
    REQUIRE(session.move_to(copy).ok());
    goes_on(session, sampling);
    // A history of the application's own goes on where constrained_from says.
    sync(other, join(prompt, first(whole, 7)));
    goes_on(other, placed);
    sync(other, join(prompt, {1, 2, 3}));
    const auto refused = other.next(placed);
    CHECK(refused.status().code == Code::bad_argument);
    CHECK(refused.status().text.find("refuses token 25 of the history") != std::string::npos);
}

TEST_CASE("sync() with more tokens, another constraint and a call without one let a text begin anew") {
    const Tiny tiny;
    const Constraint digits = gbnf(tiny.model, "root ::= [0-9]{4}"), letters = gbnf(tiny.model, "root ::= [a-f]{4}");
    Session session = draft_rig::open(tiny.model, with(Draft::mtp, 3));
    const std::vector<Token> prompt = tiny_ids(9, 1);
    const auto four = [&](const Constraint& c) {
        const std::vector<Token> out = generated(session, tiny.model, constrained(c), 8);
        return out.size() == 5 && judge(c, text_of(tiny.model, out)).complete;
    };
    sync(session, prompt);
    CHECK(four(digits));
    CHECK(four(letters));
    more(session, 1);
    CHECK(four(letters));
    std::vector<Token> turn = history(session);
    turn.push_back(7);
    sync(session, turn);
    CHECK(four(letters));
    sync(session, prompt);
    CHECK(four(letters));
}

TEST_CASE("a text whose beginning is given goes on behind what sync() adds, without reading its tokens again") {
    const Tiny tiny;
    Session session = draft_rig::open(tiny.model, with(Draft::off, 0));
    const std::vector<Token> prompt = tiny_ids(9, 1);
    size_t n_ask = 0;
    Sampling placed = constrained(rule(tiny.model, [&](Span<const Token> text, Token id) {
        ++n_ask;
        return text.size() % 2 == 0 ? id == 'a' : !tiny.model.is_end(id);
    }));
    placed.constrained_from = prompt.size();
    sync(session, prompt);
    std::vector<Token> text = prompt;
    for (size_t i = 0; i < 50; ++i) {
        text.push_back('a');
        sync(session, text);
        n_ask = 0;
        more(session, 1, placed);
        text = history(session);
        CHECK(n_ask == 2);  // the token that sync() added, and the one that was sampled
    }
    // One that begins where next() is called begins behind what sync() has added, as before.
    Sampling here = placed;
    here.constrained_from = kFromHere;
    sync(session, prompt);
    text = join(prompt, {'a', 7});
    sync(session, text);
    CHECK(more(session, 1, here) == std::vector<Token>{'a'});
    text = join(history(session), {7, 7});
    sync(session, text);
    Session fork;
    REQUIRE(session.fork().get(fork).ok());
    for (Session* s : {&session, &fork}) CHECK(more(*s, 1, here) == std::vector<Token>{'a'});
}

TEST_CASE("a rule of bytes decides") {
    const Tiny tiny;
    Constraint c;
    // Texts of a and b with as many of each, at least one.
    REQUIRE(Constraint::create(tiny.model,
                               [](std::string_view text, bool complete) {
                                   int open = 0;
                                   for (const char b : text) {
                                       if (b != 'a' && b != 'b') return false;
                                       open += b == 'a' ? 1 : -1;
                                   }
                                   const size_t to_close = static_cast<size_t>(std::abs(open));
                                   return complete ? open == 0 && !text.empty() : text.size() + to_close <= 30;
                               })
                .get(c)
                .ok());
    const std::vector<Token> prompt = tiny_ids(10, 2);
    const std::vector<Token> plain = text_with(tiny.model, {}, prompt, 40, seeded(c, 1));
    REQUIRE(tiny.model.is_end(plain.back()));
    const std::string text = text_of(tiny.model, plain);
    CHECK(std::count(text.begin(), text.end(), 'a') == std::count(text.begin(), text.end(), 'b'));
    for (int depth : {1, 8}) CHECK(text_with(tiny.model, with(Draft::mtp, depth), prompt, 40, seeded(c, 1)) == plain);
}

TEST_CASE("a constraint that cannot go on is an error after the tokens before it, at every depth") {
    const Tiny tiny;
    const Constraint c = rule(tiny.model, [](Span<const Token> text, Token id) { return text.size() < 6 && id < 256; });
    const std::vector<Token> prompt = tiny_ids(10, 2);
    std::vector<Token> plain;
    for (int depth : {0, 1, 5, 8}) {
        Session session = draft_rig::open(tiny.model, with(Draft::mtp, depth));
        sync(session, prompt);
        Status s;
        for (int i = 0; i < 20 && s.ok(); ++i) s = session.next(constrained(c)).status();
        CHECK(s.code == Code::bad_argument);
        CHECK(s.text.find("allows no token after 6 tokens") != std::string::npos);
        CHECK(session.next(constrained(c)).status().text == s.text);
        CHECK(session.history().size() == prompt.size() + 6);
        if (plain.empty()) plain = history(session);
        CHECK(history(session) == plain);
        CHECK(session.next({}).ok());
    }
}

TEST_CASE("a constraint that reaches its limit at a refused token ends after the tokens before it, at every depth") {
    const Tiny tiny;
    const Constraint all = rule(tiny.model, [](Span<const Token>, Token) { return true; });
    const std::vector<Token> prompt = tiny_ids(10, 2);
    const std::vector<Token> plain = text_with(tiny.model, {}, prompt, 20, constrained(all));
    for (const int depth : {0, 1, 2, 8}) {
        CAPTURE(depth);
        Setup taught = with(Draft::lookup, depth);
        taught.text_source.reset(new Truth(join(prompt, plain)));
        Session session = draft_rig::open(tiny.model, std::move(taught));
        sync(session, prompt);
        REQUIRE(session.next(constrained(all), 1).ok());
        state_of(session.impl()->constrained).reset(new Limited(1, 12));
        Status s;
        while (s.ok()) s = session.next(constrained(all)).status();
        CHECK(s.code == Code::unsupported);
        CHECK(session.next(constrained(all)).status().code == Code::unsupported);
        CHECK(history(session) == join(prompt, std::vector<Token>(plain.begin(), plain.begin() + 12)));
    }
}

TEST_CASE("a text that becomes too ambiguous ends at the same token at every depth") {
    const Tiny tiny;
    for (const int depth : {0, 8}) {
        CAPTURE(depth);
        Setup taught = with(Draft::lookup, depth);
        taught.text_source.reset(new Truth(std::vector<Token>(500, '(')));
        Session session = draft_rig::open(tiny.model, std::move(taught));
        for (const bool wanted : {false, true}) check_too_ambiguous(session, only_open(tiny.model, wanted));
    }
}

TEST_CASE("a history beyond what a constraint can match is unsupported, not refused") {
    const Tiny tiny;
    Session session = draft_rig::open(tiny.model, {});
    sync(session, std::vector<Token>(500, '('));
    Sampling s = constrained(gbnf(tiny.model, "root ::= \"(\" root \")\" | \"(\" root \"]\" | \"x\""));
    s.constrained_from = 0;
    const Status limit = session.next(s).status();
    CHECK(limit.code == Code::unsupported);
    CHECK(limit.text.find("more than 512 ways") != std::string::npos);
    CHECK(session.history().size() == 500);
    CHECK(session.next({}).ok());
}

TEST_CASE("after a constraint that cannot go on tokens can be taken back, at every depth") {
    const Tiny tiny;
    const Constraint c = rule(tiny.model, [](Span<const Token> text, Token id) { return text.size() < 6 && id < 256; });
    const std::vector<Token> prompt = tiny_ids(10, 2), plain = text_with(tiny.model, {}, prompt, 6, constrained(c));
    for (const int depth : {0, 2, 8})
        for (const size_t n_back : {size_t{1}, size_t{2}, size_t{4}}) {
            CAPTURE(depth);
            CAPTURE(n_back);
            Setup taught = with(depth > 2 ? Draft::mtp : Draft::lookup, depth);
            if (depth == 2) taught.text_source.reset(new Truth(join(prompt, plain)));
            Session session = draft_rig::open(tiny.model, std::move(taught)), other = draft_rig::open(tiny.model, {});
            sync(session, prompt);
            while (session.next(constrained(c)).ok()) {
            }
            REQUIRE(history(session) == join(prompt, plain));
            sync(session, join(prompt, first(plain, plain.size() - n_back)));
            check_logits(session, other);
            CHECK(more(session, 1)[0] == more(other, 1)[0]);
        }
}

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
TEST_CASE("a rule that throws leaves through the call, and the text goes on as if it had not") {
    const Tiny tiny;
    for (const int depth : {1, 4}) {
        CAPTURE(depth);
        Session session = draft_rig::open(tiny.model, with(Draft::lookup, depth)),
                other = draft_rig::open(tiny.model, {});
        check_throwing_rule(tiny.model, session, other);
    }
    int until = -1;
    Constraint c;
    const TextRule letters = [&](std::string_view text, bool complete) {
        if (until >= 0 && until-- == 0) throw std::bad_alloc();
        return !complete && std::all_of(text.begin(), text.end(), [](char b) { return b >= 'a' && b <= 'h'; });
    };
    REQUIRE(Constraint::create(tiny.model, letters).get(c).ok());
    const std::vector<Token> prompt = tiny_ids(10, 2), plain = text_with(tiny.model, {}, prompt, 12, constrained(c));
    Session session = draft_rig::open(tiny.model, {});
    sync(session, prompt);
    for (until = 0; session.history().size() < 22; until = session.history().size() % 3 == 0 ? 2 : 0) {
        const std::vector<Token> before = history(session);
        const Status s = session.next(constrained(c)).status();
        CHECK((s.ok() || s.code == Code::out_of_memory));
        until = -1;
        if (!s.ok()) CHECK(history(session) == before);
        more(session, 1, constrained(c));
    }
    CHECK(history(session, 22) == join(prompt, plain));
}
#endif

TEST_CASE("constraints that do not fit are refused with what to do") {
    const Tiny tiny;
    const Model model = tiny.model;
    CHECK(Constraint::create(Model(), Grammar()).status().code == Code::bad_argument);
    CHECK(Constraint::create(model, Grammar()).status().code == Code::bad_argument);
    CHECK(Constraint::create(model, std::shared_ptr<const TokenRule>()).status().code == Code::bad_argument);
    CHECK(Constraint::create(model, TextRule()).status().code == Code::bad_argument);
    Grammar names_a_token;
    REQUIRE(Grammar::from_gbnf("root ::= \"a\" <|nowhere|>").get(names_a_token).ok());
    const Status unknown = Constraint::create(model, names_a_token).status();
    CHECK(unknown.code == Code::bad_argument);
    CHECK(unknown.text.find("<|nowhere|>") != std::string::npos);

    Session session = draft_rig::open(model, {});
    sync(session, tiny_ids(5, 1));
    Sampling s = constrained(gbnf(model, "root ::= \"a\""));
    s.constrained_from = 6;
    CHECK(session.next(s).status().text.find("constrained_from is 6 (in C 7)") != std::string::npos);
    const Model demo = demo_model(1);
    const Status foreign = session.next(constrained(gbnf(demo, "root ::= \"a\""))).status();
    CHECK(foreign.code == Code::bad_argument);
    CHECK(foreign.text.find("another vocabulary") != std::string::npos);
    // A rule whose two answers contradict each other.
    class Liar : public TokenRule {
      public:
        bool allows(Span<const Token>, Token) const override { return false; }
        void filter(Span<const Token>, Span<uint32_t>) const override {}
    };
    Constraint liar;
    REQUIRE(Constraint::create(model, std::make_shared<const Liar>()).get(liar).ok());
    const Status contradiction = session.next(constrained(liar)).status();
    CHECK(contradiction.code == Code::bad_argument);
    CHECK(contradiction.text.find("filter()") != std::string::npos);
    CHECK(session.history().size() == 5);
    CHECK(session.next({}).ok());
}
