// grammar/alternatives: how many alternatives begin at one place. Declared in grammar/grammar.h.
//
// A state of the automaton has a reading for each of them, so the number decides how many readings are kept, and a
// grammar with too many is refused when it is made, not when a text comes to that place.
#include "automaton.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace alternatives_impl {

constexpr unsigned kMaxNested = 64;       // rules that are only a call of another, followed to the last
constexpr uint64_t kMaxWidth = 1u << 30;  // that is counted

}  // namespace alternatives_impl

/// Of each rule and expression: alternatives that begin where it begins. Alternatives that are the same count twice.
struct Rules::Widths {
    const std::vector<uint8_t>& nullables;
    std::vector<uint32_t> of_rule;
    bool only_first = false;  ///< what begins elsewhere is left out: its rules may have no width yet
    std::unordered_map<ExprId, uint32_t> known;
    std::vector<std::pair<ExprId, uint32_t>> choices;  ///< and the rules that they are in
    uint32_t rule = 0;                                 ///< in which the expressions are
    size_t total = 0;                                  ///< alternatives of the grammar, each once
    uint32_t widest = 0, widest_rule = 0;
    ExprId widest_expr = kNoMatch;

    Widths(const std::vector<uint8_t>& nullable_exprs, std::vector<uint32_t> widths)
        : nullables(nullable_exprs), of_rule(std::move(widths)) {}
    uint32_t note(ExprId e, uint64_t n) {
        const uint32_t width = static_cast<uint32_t>(std::min(n, alternatives_impl::kMaxWidth));
        if (width > widest) {
            widest = width;
            widest_rule = rule;
            widest_expr = e;
        }
        return width;
    }
};

/// What follows the plain beginning of an alternative: several may begin alike, as objects do, and go on together.
ExprId Rules::after_plain(ExprId e) const {
    const auto begins_plain = [this](ExprId at) {
        return pool[at].kind == ExprKind::concat && pool[pool[at].a].is_plain();
    };
    ExprId at = e;
    for (unsigned i = 0; i < alternatives_impl::kMaxNested && pool[at].kind == ExprKind::rule; ++i)
        at = body[pool[at].a];
    if (!begins_plain(at)) return e;
    while (begins_plain(at)) at = pool[at].b;
    return at;
}

uint32_t Rules::width(ExprId e, Widths& of) {
    const ExprNode n = pool[e];
    if (n.kind == ExprKind::rule) return of.of_rule[n.a];
    const bool divided = n.kind == ExprKind::concat || n.kind == ExprKind::choice;
    if (n.regular && !(divided && n.wide)) return 1;
    if (const auto found = of.known.find(e); found != of.known.end()) return found->second;
    uint64_t width_all = 1;
    if (n.kind == ExprKind::concat) {
        std::vector<ExprId> rests;
        bool goes_on = true;
        for (; goes_on && pool[e].kind == ExprKind::concat && of.known.count(e) == 0; e = pool[e].b) {
            rests.push_back(e);
            goes_on = !of.only_first || of.nullables[pool[e].a] != 0;
        }
        width_all = goes_on ? width(e, of) : 0;
        for (; !rests.empty(); rests.pop_back()) {
            const ExprId first = pool[rests.back()].a;
            const uint64_t n_way = width(first, of) + (of.nullables[first] ? width_all : 0);
            width_all = of.known[rests.back()] = of.note(rests.back(), n_way);
        }
        return static_cast<uint32_t>(width_all);
    }
    if (n.kind == ExprKind::choice) {
        bool plain = false;
        width_all = 0;
        for (const ExprId p : pool.parts(e)) {
            plain = plain || pool[p].is_plain();
            width_all += pool[p].is_plain() ? 0 : width(p, of);
        }
        width_all += plain ? 1 : 0;
        of.choices.push_back({e, of.rule});
        of.total += n.b;
    } else if (n.kind == ExprKind::repeat) {
        width_all = width(n.a, of);
    } else if (n.kind == ExprKind::members) {
        const ObjectRule& o = objects[n.a];
        for (const auto* list : {&o.listed, &o.extra})
            for (const ObjectRule::Member& m : *list)
                if (!of.only_first) width(m.value, of);
        for (const ObjectRule::Key& k : o.keys) width_all = std::max<uint64_t>(width_all, k.n_child);
        width_all += o.extra.size() + 1;
        of.total += static_cast<size_t>(width_all);
    }
    return of.known[e] = of.note(e, width_all);
}

/// left_order: rules after those that they call without a byte before.
Status Rules::check_widths(const std::vector<uint32_t>& left_order) {
    grammar_impl::PostOrder walk(*this);
    walk.walk(start);
    const std::vector<uint8_t> nullables = fixpoint(&Rules::nullable, walk.order);
    Widths first(nullables, std::vector<uint32_t>(body.size(), 1));
    first.only_first = true;
    for (const uint32_t r : left_order) first.of_rule[r] = width(body[r], first);
    // Now that rules have their widths, every place can have its own.
    Widths of(nullables, std::move(first.of_rule));
    for (const uint32_t r : walk.order) {
        of.rule = r;
        width(body[r], of);
    }
    for (size_t i = 0; i < of.choices.size(); ++i) {
        uint64_t n_way = 1;
        for (const ExprId p : pool.parts(of.choices[i].first))
            n_way += pool[p].is_plain() ? 0 : std::max(width(p, of), width(after_plain(p), of));
        of.rule = of.choices[i].second;
        of.note(of.choices[i].first, n_way);
    }
    // Where rules lead to the same alternatives again and again, that is an ambiguity.
    widest = static_cast<uint32_t>(std::min<size_t>({of.widest, of.total, kMaxWays}));
    if (std::min<size_t>(of.widest, of.total) <= kMaxWays) return {};
    Automaton exact(std::make_shared<const Rules>(*this));
    const StateId s = exact.state_of({{of.widest_expr, 0}});
    bool fits = !exact.narrowed(s) && exact.readings(s).size() <= kMaxWays;
    for (unsigned c = 0; c < exact.classes().n; ++c) fits = fits && !exact.narrowed(exact.step_class(s, c));
    if (fits) return {};
    refused = of.widest_rule;
    // Those that begin right there; only if they are few enough, those behind what several of them begin with.
    const uint32_t n = width(of.widest_expr, of);
    return fail(Code::unsupported, n > kMaxWays ? n : of.widest, " alternatives begin at one place of ",
                quote(name[refused], 40), ", at most ", kMaxWays,
                " are followed; write once what several of them begin with");
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
