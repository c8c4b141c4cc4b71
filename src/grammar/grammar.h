// grammar/grammar: a complete grammar: rules over expressions, control tokens, objects.
//
// Owns    Rules, which front ends fill and finish() checks: no left recursion, no empty language, within the caps.
//         A finished grammar is immutable; an Automaton runs it.
// Thread  immutable once finished; any number of threads may use it.
// Tests   tests/test_grammar.cpp
#pragma once
#include "expr.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// A control token that the text names at this place: by its bytes, or by its id.
struct TokenTerminal {
    std::string name;
    Token id = -1;               ///< used where the name is empty
    bool negated = false;        ///< any token but this one
    bool control_only = false;   ///< with `negated`: any control token but this one
    bool may_be_absent = false;  ///< a vocabulary without it is no error: nothing matches, or with `negated` all
};

/// What may stand between the braces of an object.
struct ObjectRule {
    struct Member {
        ExprId key = kNoMatch;  ///< the name with its quotes and the colon
        ExprId value = kNoMatch;
        bool required = false;
    };
    /// A tree of what the keys of listed members begin with, so that a thousand keys are a few alternatives.
    struct Key {
        ExprId text = kEmptyText;         ///< of a node without children up to the value
        uint32_t child = 0, n_child = 0;  ///< in `keys`
        uint32_t first = 0, last = 0;     ///< in by_key: the members below
    };
    std::vector<Member> listed;  ///< each at most once
    std::vector<Member> extra;   ///< any number of times; their names are in no other entry
    bool any_order = false;      ///< else listed members come as listed, extra ones after them
    uint32_t min_count = 0, max_count = kUnbounded;
    ExprId separator = kNoMatch;   ///< a comma with its white space
    std::vector<uint32_t> by_key;  ///< listed members in the order of their keys. Like `keys` made by finish()
    std::vector<Key> keys;         ///< the root first
};

struct Rules {
    ExprPool pool;
    std::vector<ExprId> body;       ///< of each rule
    std::vector<std::string> name;  ///< of each rule, for messages
    std::vector<TokenTerminal> terminals;
    std::vector<ObjectRule> objects;
    std::vector<std::vector<uint64_t>> written;  ///< sets of listed members: what ExprNode::b of `members` means
    std::map<std::vector<uint64_t>, uint32_t> written_index;
    size_t written_bytes = 0;  ///< of both, about
    uint32_t start = 0;
    static constexpr uint32_t kNoRule = UINT32_MAX;
    uint32_t refused = kNoRule;        ///< the rule because of which finish() said that the grammar is unsupported
    uint32_t widest = 0;               ///< the most alternatives that begin at one place, about
    std::vector<std::string> ignored;  ///< what the front end was allowed to ignore

    /// A rule to be given a body later.
    uint32_t add_rule(std::string name);
    /// The members of an object from its beginning.
    ExprId begin_members(uint32_t object);
    /// One step of `members` or `key`: what may follow, as an expression of a key or a part of one, and then the rest
    /// of the key or a value and the members after it.
    ExprId expand_members(ExprId e);

    /// Checks the grammar and makes it ready to run: call once.
    ///
    /// errors    bad_argument: left recursion, or a grammar that matches nothing; the text names the rule.
    ///           unsupported: above a cap.
    Status finish();

  private:
    std::string take_text(ExprId& e) const;
    void sort_keys(ObjectRule& o);
    size_t add_children(ObjectRule& o, const std::vector<std::string>& texts, uint32_t node, size_t depth);
    uint32_t intern_written(std::vector<uint64_t> set);
    /// The rules in a cycle of calls without a byte between, or empty: then `order` has each after those that it calls
    /// so.
    std::vector<uint32_t> find_left_recursion(const std::vector<uint8_t>& nullables,
                                              std::vector<uint32_t>& order) const;
    bool holds_by_parts(ExprId e, const std::vector<uint8_t>& holds, bool fallback) const;
    bool productive(ExprId e, const std::vector<uint8_t>& holds);
    bool object_productive(const ObjectRule& o, const std::vector<uint8_t>& holds);
    bool nullable(ExprId e, const std::vector<uint8_t>& holds);
    void left_calls(ExprId e, const std::vector<uint8_t>& nullables, std::vector<uint32_t>& out) const;
    void note_search(uint32_t rule) {
        if (refused == kNoRule && pool.gave_up()) refused = rule;
    }
    struct Widths;
    uint32_t width(ExprId e, Widths& of);
    ExprId after_plain(ExprId e) const;
    Status check_widths(const std::vector<uint32_t>& left_order);
    ExprId prune(ExprId e, const std::vector<uint8_t>& productives, std::unordered_map<ExprId, ExprId>& done);
    std::vector<uint8_t> fixpoint(bool (Rules::*test)(ExprId, const std::vector<uint8_t>&),
                                  const std::vector<uint32_t>& order);
};

namespace grammar_impl {

/// Calls f for each expression that this one consists of; a rule that it calls is not among them.
template <class F>
void each_part(const Rules& rules, ExprId e, F f) {
    const ExprNode& n = rules.pool[e];
    switch (n.kind) {
        case ExprKind::concat:
            f(n.a);
            f(n.b);
            break;
        case ExprKind::choice:
            for (const ExprId p : rules.pool.parts(e)) f(p);
            break;
        case ExprKind::repeat: f(n.a); break;
        case ExprKind::members:
            for (const auto* list : {&rules.objects[n.a].listed, &rules.objects[n.a].extra})
                for (const ObjectRule::Member& m : *list) f(m.value);
            break;
        default: break;
    }
}

/// Rules in the order in which a depth-first walk from the start leaves them, so that a rule follows what it uses.
struct PostOrder {
    const Rules& rules;
    std::vector<uint32_t> order;
    std::vector<uint8_t> seen;

    explicit PostOrder(const Rules& r) : rules(r), seen(r.body.size(), 0) {}

    void used_by(ExprId e, std::vector<uint32_t>& out, ExprSet& done) const {
        std::vector<ExprId> open{e};
        while (!open.empty()) {
            const ExprId at = open.back();
            open.pop_back();
            const ExprNode& n = rules.pool[at];
            if (n.regular || !done.emplace(at, at).second) continue;
            if (n.kind == ExprKind::rule) out.push_back(n.a);
            each_part(rules, at, [&open](ExprId p) { open.push_back(p); });
        }
    }
    void walk(uint32_t start) {
        struct Step {
            uint32_t rule;
            std::vector<uint32_t> uses;
            size_t next;
        };
        std::vector<Step> stack;
        const auto enter = [&](uint32_t rule) {
            seen[rule] = 1;
            std::vector<uint32_t> uses;
            ExprSet done;
            used_by(rules.body[rule], uses, done);
            stack.push_back({rule, std::move(uses), 0});
        };
        enter(start);
        while (!stack.empty()) {
            Step& top = stack.back();
            if (top.next == top.uses.size()) {
                order.push_back(top.rule);
                stack.pop_back();
            } else if (const uint32_t rule = top.uses[top.next++]; !seen[rule]) {
                enter(rule);
            }
        }
    }
};

}  // namespace grammar_impl

constexpr size_t kMaxRules = 50000;
constexpr size_t kMaxExprs = 400000;  ///< of a grammar, before it runs
constexpr uint32_t kMaxWays = 16384;  ///< alternatives that begin at one place

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
