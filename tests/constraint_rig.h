// tests/constraint_rig: constraints, and texts under them, for the tests of both back ends.
#pragma once
#include <cmath>

#include "draft_rig.h"
#include "draft_sources.h"
#include "largest.h"

namespace constraint_rig {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

/// A TokenRule from a function.
class Rule : public TokenRule {
  public:
    using Ask = std::function<bool(Span<const Token>, Token)>;
    explicit Rule(Ask ask) : ask_(std::move(ask)) {}
    bool allows(Span<const Token> text, Token id) const override { return ask_(text, id); }

  private:
    Ask ask_;
};

inline Constraint rule(const Model& model, Rule::Ask ask) {
    Constraint c;
    const Status s = Constraint::create(model, std::make_shared<const Rule>(std::move(ask))).get(c);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return c;
}
inline Constraint constraint(const Model& model, Result<Grammar> grammar) {
    REQUIRE_MESSAGE(grammar.ok(), grammar.status().message());
    Constraint c;
    const Status s = Constraint::create(model, grammar.value()).get(c);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return c;
}
inline Constraint gbnf(const Model& model, std::string_view text) {
    return constraint(model, Grammar::from_gbnf(text));
}

inline Sampling constrained(const Constraint& c, Sampling sampling = {}) {
    sampling.constraint = c;
    return sampling;
}
inline Sampling seeded(const Constraint& c, uint64_t seed, float temperature = 1) {
    Sampling s = constrained(c);
    s.temperature = temperature;
    s.seed = seed;
    return s;
}

/// Up to n tokens after the history, the last of them one that ends the text if it ends before.
inline std::vector<Token> generated(Session& session, const Model& model, const Sampling& sampling, size_t n) {
    std::vector<Token> out;
    while (out.size() < n && (out.empty() || !model.is_end(out.back()))) {
        const auto next = session.next(sampling);
        REQUIRE_MESSAGE(next.ok(), next.status().message());
        out.insert(out.end(), next.value().begin(), next.value().end());
    }
    out.resize(std::min(out.size(), n));
    return out;
}

/// The text without the token that ends it.
inline std::string text_of(const Model& model, Span<const Token> ids) {
    const auto text = model.decode(ids, {});
    REQUIRE(text.ok());
    return text.value();
}

/// A text of brackets that are never closed, each of which can be read in two ways. wanted: by the model itself, too.
inline Sampling only_open(const Model& model, bool wanted) {
    Sampling how = constrained(gbnf(model, "root ::= \"(\" root \")\" | \"(\" root \"]\" | \"x\""));
    how.logit_bias = {{'x', -1000}, {'(', wanted ? 1000.0f : 0.0f}};
    return how;
}
/// That it becomes too ambiguous where its ways exceed what is followed, and goes no token further.
inline void check_too_ambiguous(Session& session, const Sampling& how) {
    sync(session, {});
    sync(session, std::vector<Token>{3});
    Status s;
    while (s.ok()) s = session.next(how).status();
    CHECK(s.code == Code::unsupported);
    CHECK(session.next(how).status().text == s.text);
    CHECK(session.history().size() == 1 + 8);
}

/// The logits are those of `other`, which reads the same text.
inline void check_logits(Session& session, Session& other) {
    const std::vector<Token> text = history(session);
    sync(other, {});
    sync(other, text);
    const auto a = session.logits(), b = other.logits();
    REQUIRE_MESSAGE(a.ok(), a.status().message());
    REQUIRE_MESSAGE(b.ok(), b.status().message());
    double gap = 0;
    for (size_t i = 0; i < a.value().size(); ++i) gap = larger_error(gap, std::fabs(a.value()[i] - b.value()[i]));
    CHECK(gap < 0.1f);
}

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
/// A rule that throws when it is asked in a cycle leaves through next(), and the text goes on as if it had not.
/// session: drafts from the text, at a depth above 0.
inline void check_throwing_rule(const Model& model, Session& session, Session& other) {
    int until = -1;  // how often it answers before it throws
    const Sampling how = constrained(rule(model, [&](Span<const Token> text, Token id) {
        if (until >= 0 && until-- == 0) throw 1;
        return id < 256 && (text.size() % 3 != 2 || id % 7 == 3);
    }));
    const std::vector<Token> prompt = tiny_ids(20, 5);
    sync(other, prompt);
    const std::vector<Token> whole = join(prompt, generated(other, model, how, 24));
    session.impl()->sources.text.reset(new Truth(whole));
    for (const int n : {0, 1, 2, 3, 9, 60}) {
        CAPTURE(n);
        sync(session, {});
        sync(session, prompt);
        more(session, 2, how);
        const std::vector<Token> before = history(session);
        until = n;
        CHECK_THROWS((void)session.next(how).ok());
        until = -1;
        CHECK(history(session) == before);
        if (n % 2 == 1) check_logits(session, other);
        grow(session, whole.size(), how);
        CHECK(history(session, whole.size()) == whole);
    }
}
#endif

/// Grammars whose texts are short, long, nearly free, and forced for the most part.
inline std::vector<Constraint> constraints(const Model& model) {
    return {gbnf(model, "root ::= \"yes\" | \"no\" | \"never\""),
            constraint(model, Grammar::from_regex("([a-m]{3,9} ){6}[0-9]+\\.[0-9]{2}")),
            constraint(model, Grammar::from_json_schema(R"({"type": "object", "properties": {
                "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
                "sure": {"type": "boolean"}}, "required": ["name", "age", "tags", "sure"],
                "additionalProperties": false})")),
            constraint(model, Grammar::from_json_schema(R"({"type": "array", "minItems": 2, "maxItems": 5,
                "items": {"anyOf": [{"type": "number"}, {"type": "null"}, {"type": "string", "maxLength": 6}]}})"))};
}

/// Refuses what the model would take most often, at one place of the text alone or at every n-th.
inline Constraint refusing(const Model& model, size_t first, size_t every) {
    return rule(model, [=](Span<const Token> text, Token id) {
        if (id >= 256) return false;
        return text.size() < first || (text.size() - first) % every != 0 || id % 7 == 3;
    });
}

}  // namespace constraint_rig
