#include "grammar.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace grammar_impl {

// Derivatives, to find out what matches nothing: of one expression, and of all of them.
constexpr size_t kMaxSearch = 40000, kMaxSearches = 400000;
constexpr uint32_t kMaxEmptyRepeat = 64;  // of an element that may be empty and is no regular expression

}  // namespace grammar_impl

uint32_t Rules::add_rule(std::string rule_name) {
    body.push_back(kNoMatch);
    name.push_back(std::move(rule_name));
    return static_cast<uint32_t>(body.size() - 1);
}

// ------------------------------------------------------------------------------------------- objects

uint32_t Rules::intern_written(std::vector<uint64_t> set) {
    make_room(written);
    const auto found = written_index.emplace(set, static_cast<uint32_t>(written.size()));
    if (found.second) {
        written_bytes += 2 * sizeof(uint64_t) * set.size() + 120;
        written.push_back(std::move(set));
    }
    return found.first->second;
}

ExprId Rules::begin_members(uint32_t object) {
    const ObjectRule& o = objects[object];
    if (!o.any_order) return pool.members(object, 0, 0);
    return pool.members(object, intern_written(std::vector<uint64_t>((o.listed.size() + 63) / 64)), 0);
}

ExprId Rules::expand_members(ExprId e) {
    const bool in_key = pool[e].kind == ExprKind::key;
    const uint32_t at_key = pool[e].b;
    if (in_key) e = pool[e].a;
    const ExprNode at = pool[e];
    const ObjectRule& o = objects[at.a];
    const uint32_t cap = std::max({1u, o.min_count, o.max_count == kUnbounded ? 0 : o.max_count});
    const uint32_t count = std::min(at.lo + 1, cap);
    std::vector<uint64_t> set;
    uint32_t index = at.b;  // of the set, or the first member that may follow
    if (o.any_order) {
        set = written[at.b];
        if (at.hi > 0) {
            // Only sets that a text has reached are kept: there are many more.
            set[(at.hi - 1) / 64] |= uint64_t{1} << ((at.hi - 1) % 64);
            index = intern_written(set);
        }
    }
    const auto is_written = [&](size_t i) { return o.any_order ? (set[i / 64] >> (i % 64) & 1) != 0 : i < at.b; };
    uint32_t n_required = 0, n_usable = 0;  // of those not written
    for (size_t i = 0; i < o.listed.size(); ++i) {
        if (is_written(i)) continue;
        n_required += o.listed[i].required ? 1 : 0;
        n_usable += o.listed[i].value != kNoMatch ? 1 : 0;
    }
    const bool has_extra =
        std::any_of(o.extra.begin(), o.extra.end(), [](const ObjectRule::Member& m) { return m.value != kNoMatch; });
    // After one more member the counts must still be reachable.
    const auto fits = [&](uint32_t required_after, uint32_t usable_after) {
        return (o.max_count == kUnbounded || at.lo + 1 + uint64_t{required_after} <= o.max_count) &&
               (has_extra || at.lo + 1 + uint64_t{usable_after} >= o.min_count);
    };
    std::vector<uint8_t> may_follow(o.listed.size());
    const bool complete = n_required == 0;
    for (size_t i = 0; i < o.listed.size(); ++i) {
        const ObjectRule::Member& m = o.listed[i];
        if (is_written(i)) continue;
        if (m.value != kNoMatch) {
            may_follow[i] = fits(n_required - (m.required ? 1 : 0), n_usable - 1);
            // In order, a member that is passed over does not come later.
            if (!o.any_order) --n_usable;
        }
        if (!o.any_order && m.required) break;
    }
    const auto way = [&](uint32_t k) {
        const ObjectRule::Key& key = o.keys[k];
        const auto first = o.by_key.begin() + key.first, last = o.by_key.begin() + key.last;
        if (std::none_of(first, last, [&](uint32_t i) { return may_follow[i] != 0; })) return kNoMatch;
        if (key.n_child > 0) return pool.concat(key.text, pool.key(e, k));
        const ExprId rest =
            o.any_order ? pool.members(at.a, index, count, *first + 1) : pool.members(at.a, *first + 1, count);
        return pool.concat({key.text, o.listed[*first].value, rest});
    };
    std::vector<ExprId> ways;
    if (in_key) {
        const ObjectRule::Key& key = o.keys[at_key];
        for (uint32_t k = key.child; k < key.child + key.n_child; ++k) ways.push_back(way(k));
        return pool.choice(std::move(ways));
    }
    const ExprId separator = at.lo > 0 ? o.separator : kEmptyText;
    if (!o.keys.empty()) ways.push_back(pool.concat(separator, way(0)));
    if ((complete || o.any_order) && fits(n_required, 0)) {
        const uint32_t next = o.any_order ? index : static_cast<uint32_t>(o.listed.size());
        for (const ObjectRule::Member& m : o.extra)
            ways.push_back(pool.concat({separator, m.key, m.value, pool.members(at.a, next, count)}));
    }
    if (complete && at.lo >= o.min_count) ways.push_back(kEmptyText);
    return pool.choice(std::move(ways));
}

AUSPEX_SMALL_CODE_BEGIN

/// The bytes that an expression begins with; what follows them remains.
std::string Rules::take_text(ExprId& e) const {
    std::string text;
    while (e != kEmptyText) {
        const bool last = pool[e].kind != ExprKind::concat;
        const ExprId first = last ? e : pool[e].a;
        if (pool[first].kind != ExprKind::text) break;
        text += pool.text_of(first);
        e = last ? kEmptyText : pool[e].b;
    }
    return text;
}

void Rules::sort_keys(ObjectRule& o) {
    std::vector<std::string> texts;
    for (const ObjectRule::Member& m : o.listed) {
        ExprId key = m.key;
        texts.push_back(take_text(key));
    }
    o.by_key = sorted_indices(texts.size(), [&](uint32_t a, uint32_t b) { return texts[a] < texts[b]; });
    o.keys.clear();
    if (texts.empty()) return;
    o.keys.emplace_back();
    o.keys[0].last = static_cast<uint32_t>(texts.size());
    // Node by node, because keys that begin with one another are a tree as deep as their number.
    std::vector<size_t> depths{0};
    for (uint32_t node = 0; node < o.keys.size(); ++node) {
        const size_t depth = add_children(o, texts, node, depths[node]);
        while (depths.size() < o.keys.size()) depths.push_back(depth);
    }
}

/// Gives a node its text and its children. The keys below it agree up to `depth`; returns up to where the children's
/// do.
size_t Rules::add_children(ObjectRule& o, const std::vector<std::string>& texts, uint32_t node, size_t depth) {
    const uint32_t first = o.keys[node].first, last = o.keys[node].last;
    const std::string &low = texts[o.by_key[first]], &high = texts[o.by_key[last - 1]];
    if (last - first == 1) {
        ExprId rest = o.listed[o.by_key[first]].key;
        take_text(rest);
        o.keys[node].text = pool.concat(pool.text(std::string_view(low).substr(depth)), rest);
        return depth;
    }
    size_t common = depth;
    while (common < low.size() && common < high.size() && low[common] == high[common]) ++common;
    o.keys[node].text = pool.text(std::string_view(low).substr(depth, common - depth));
    const uint32_t child = static_cast<uint32_t>(o.keys.size());
    for (uint32_t at = first, end = first; at < last; at = end) {
        const std::string& text = texts[o.by_key[at]];
        ++end;
        // A key that the others begin with stands alone.
        while (end < last && common < text.size() && texts[o.by_key[end]][common] == text[common]) ++end;
        o.keys.emplace_back();
        o.keys.back().first = at;
        o.keys.back().last = end;
    }
    o.keys[node].child = child;
    o.keys[node].n_child = static_cast<uint32_t>(o.keys.size()) - child;
    return common;
}

bool Rules::object_productive(const ObjectRule& o, const std::vector<uint8_t>& holds) {
    uint32_t n_usable = 0, n_required = 0;
    for (const ObjectRule::Member& m : o.listed) {
        const bool usable = pool.live(m.key) && holds[m.value] != 0;
        if (m.required && !usable) return false;
        n_usable += usable ? 1 : 0;
        n_required += m.required ? 1 : 0;
    }
    if (n_required > o.max_count || o.min_count > o.max_count) return false;
    if (n_usable >= o.min_count) return true;
    for (const ObjectRule::Member& m : o.extra)
        if (pool.live(m.key) && holds[m.value] != 0) return true;
    return false;
}

// --------------------------------------------------------------------------------------------- checks

// Tests of one expression, given their results for its parts.

/// Of an expression that is neither regular nor an object. fallback: the result for one without parts.
bool Rules::holds_by_parts(ExprId e, const std::vector<uint8_t>& holds, bool fallback) const {
    const ExprNode& n = pool[e];
    const auto passes = [&holds](ExprId p) { return holds[p] != 0; };
    switch (n.kind) {
        case ExprKind::concat: return passes(n.a) && passes(n.b);
        case ExprKind::choice: return std::any_of(pool.parts(e).begin(), pool.parts(e).end(), passes);
        case ExprKind::repeat: return n.lo == 0 || passes(n.a);
        case ExprKind::rule: return passes(body[n.a]);
        default: return fallback;
    }
}

bool Rules::productive(ExprId e, const std::vector<uint8_t>& holds) {
    if (pool[e].regular) return pool.live(e);
    if (pool[e].kind == ExprKind::members) return object_productive(objects[pool[e].a], holds);
    return holds_by_parts(e, holds, true);
}

bool Rules::nullable(ExprId e, const std::vector<uint8_t>& holds) {
    const ExprNode& n = pool[e];
    if (n.regular) return n.nullable;
    if (n.kind != ExprKind::members) return holds_by_parts(e, holds, false);
    const std::vector<ObjectRule::Member>& listed = objects[n.a].listed;
    return objects[n.a].min_count == 0 &&
           std::none_of(listed.begin(), listed.end(), [](const ObjectRule::Member& m) { return m.required; });
}

/// Whether a test holds, for each expression of these rules. One is tested again only when the test was found to hold
/// of one of its parts, so the work is proportional to the grammar.
std::vector<uint8_t> Rules::fixpoint(bool (Rules::*test)(ExprId, const std::vector<uint8_t>&),
                                     const std::vector<uint32_t>& order) {
    struct Use {
        ExprId by;
        uint32_t next;
    };
    std::vector<Use> uses(1);
    std::vector<uint32_t> first_use(pool.size(), 0);  // in `uses`, a list; 0 ends it
    std::vector<uint8_t> holds(pool.size(), 0), met(pool.size(), 0);
    std::vector<ExprId> found;  // those that the test holds of
    const auto check = [&](ExprId e) {
        if (holds[e] || !(this->*test)(e, holds)) return;
        holds[e] = 1;
        found.push_back(e);
    };
    const auto add_use = [&](ExprId of, ExprId by) {
        uses.push_back({by, first_use[of]});
        first_use[of] = static_cast<uint32_t>(uses.size() - 1);
    };
    std::vector<ExprId> exprs;  // of a rule
    for (const uint32_t r : order) {
        exprs.clear();
        const auto meet = [&](ExprId e) {
            if (!met[e]) exprs.push_back(e);
            met[e] = 1;
        };
        meet(body[r]);
        for (size_t i = 0; i < exprs.size(); ++i) {
            const ExprId e = exprs[i];
            if (pool[e].regular) continue;
            if (pool[e].kind == ExprKind::rule) add_use(body[pool[e].a], e);
            grammar_impl::each_part(*this, e, [&](ExprId p) {
                meet(p);
                add_use(p, e);
            });
        }
        // Mostly, an expression is met before those that it consists of.
        for (size_t i = exprs.size(); i-- > 0;) check(exprs[i]);
        note_search(r);
    }
    for (size_t i = 0; i < found.size(); ++i)
        for (uint32_t u = first_use[found[i]]; u != 0; u = uses[u].next) check(uses[u].by);
    return holds;
}

void Rules::left_calls(ExprId e, const std::vector<uint8_t>& nullables, std::vector<uint32_t>& out) const {
    std::vector<ExprId> open{e};
    ExprSet done;
    while (!open.empty()) {
        const ExprId at = open.back();
        open.pop_back();
        const ExprNode n = pool[at];
        if (n.regular || !done.emplace(at, at).second) continue;
        switch (n.kind) {
            case ExprKind::concat:
                open.push_back(n.a);
                if (nullables[n.a]) open.push_back(n.b);
                break;
            case ExprKind::choice:
                for (const ExprId p : pool.parts(at)) open.push_back(p);
                break;
            case ExprKind::repeat: open.push_back(n.a); break;
            case ExprKind::rule: out.push_back(n.a); break;
            default: break;
        }
    }
}

std::vector<uint32_t> Rules::find_left_recursion(const std::vector<uint8_t>& nullables,
                                                 std::vector<uint32_t>& order) const {
    std::vector<uint8_t> state(body.size(), 0);  // 0 new, 1 on the path, 2 done
    struct Step {
        uint32_t rule;
        std::vector<uint32_t> calls;
        size_t next;
    };
    for (uint32_t r = 0; r < body.size(); ++r) {
        if (state[r] != 0) continue;
        std::vector<Step> path;
        const auto enter = [&](uint32_t rule) {
            state[rule] = 1;
            std::vector<uint32_t> calls;
            left_calls(body[rule], nullables, calls);
            path.push_back({rule, std::move(calls), 0});
        };
        enter(r);
        while (!path.empty()) {
            Step& top = path.back();
            if (top.next == top.calls.size()) {
                state[top.rule] = 2;
                order.push_back(top.rule);
                path.pop_back();
                continue;
            }
            const uint32_t called = top.calls[top.next++];
            if (state[called] == 0) {
                enter(called);
                continue;
            }
            if (state[called] != 1) continue;
            std::vector<uint32_t> cycle;
            size_t i = path.size();
            while (path[--i].rule != called) {
            }
            for (; i < path.size(); ++i) cycle.push_back(path[i].rule);
            return cycle;
        }
    }
    return {};
}

ExprId Rules::prune(ExprId e, const std::vector<uint8_t>& productives, std::unordered_map<ExprId, ExprId>& done) {
    const ExprNode n = pool[e];
    if (n.regular) return pool.live(e) ? e : kNoMatch;
    const auto found = done.find(e);
    if (found != done.end()) return found->second;
    ExprId result = e;
    switch (n.kind) {
        case ExprKind::concat: {
            std::vector<ExprId> parts;
            ExprId rest = e;
            for (; pool[rest].kind == ExprKind::concat; rest = pool[rest].b) parts.push_back(pool[rest].a);
            result = prune(rest, productives, done);
            for (; !parts.empty() && result != kNoMatch; parts.pop_back())
                result = pool.concat(prune(parts.back(), productives, done), result);
            break;
        }
        case ExprKind::choice: {
            std::vector<ExprId> parts;
            for (uint32_t i = 0; i < n.b; ++i) parts.push_back(prune(pool.parts(e)[i], productives, done));
            result = pool.choice(std::move(parts));
            break;
        }
        case ExprKind::repeat: result = pool.repeat(prune(n.a, productives, done), n.lo, n.hi); break;
        case ExprKind::rule: result = productives[e] ? e : kNoMatch; break;
        case ExprKind::members: result = productives[e] ? e : kNoMatch; break;
        default: break;
    }
    done.emplace(e, result);
    return result;
}

Status Rules::finish() {
    if (body.size() > kMaxRules || pool.size() > kMaxExprs)
        return fail(Code::unsupported, "the grammar has ", body.size(), " rules and ", pool.size(),
                    " expressions, at most ", kMaxRules, " and ", kMaxExprs, " are read; make it smaller");
    for (ObjectRule& o : objects) sort_keys(o);
    pool.close();
    pool.set_search_budget(grammar_impl::kMaxSearch, grammar_impl::kMaxSearches);
    grammar_impl::PostOrder walk(*this);
    walk.walk(start);
    const std::vector<uint32_t> order = walk.order;
    // Left recursion is refused in rules that no text leads to, too.
    for (uint32_t r = 0; r < body.size(); ++r)
        if (!walk.seen[r]) walk.walk(r);
    const std::vector<uint8_t> nullables = fixpoint(&Rules::nullable, walk.order);
    std::vector<uint32_t> left_order;
    const std::vector<uint32_t> cycle = find_left_recursion(nullables, left_order);
    if (!cycle.empty()) {
        std::string path;
        for (const uint32_t r : cycle) path += quote(name[r], 40) + " -> ";
        return fail(Code::bad_argument, "left recursion: ", path, quote(name[cycle[0]], 40),
                    " without a character between; write the repetition as (...)*");
    }
    const std::vector<uint8_t> productives = fixpoint(&Rules::productive, order);
    const bool matches_something = productives[body[start]] != 0;
    for (ExprId e = 0; e < productives.size(); ++e) {
        const ExprNode n = pool[e];
        if (n.kind != ExprKind::repeat || n.regular || !productives[e] || !nullables[n.a]) continue;
        if (std::max(n.lo, n.hi == kUnbounded ? 0 : n.hi) > grammar_impl::kMaxEmptyRepeat)
            return fail(Code::unsupported, "a group that may be empty is repeated up to ",
                        n.hi == kUnbounded ? n.lo : n.hi, " times, at most ", grammar_impl::kMaxEmptyRepeat,
                        " are counted; let the group not be empty");
    }
    std::unordered_map<ExprId, ExprId> done;
    for (uint32_t r = 0; r < body.size(); ++r) {
        body[r] = prune(body[r], productives, done);
        note_search(r);
    }
    for (ObjectRule& o : objects)
        for (auto* list : {&o.listed, &o.extra})
            for (ObjectRule::Member& m : *list)
                m.value = pool.live(m.key) ? prune(m.value, productives, done) : kNoMatch;
    if (pool.gave_up() && pool.search_budget() == 0) {
        refused = kNoRule;
        return fail(Code::unsupported, "intersections of patterns, lengths and multiples are too large together: ",
                    grammar_impl::kMaxSearches,
                    " steps do not decide whether anything matches each of them; use fewer, or simpler ones");
    }
    if (pool.gave_up())
        return fail(Code::unsupported,
                    "an intersection of patterns, lengths and multiples is too large to decide whether anything "
                    "matches it; make it simpler");
    if (!matches_something)
        return fail(Code::bad_argument, "the grammar matches nothing: ", quote(name[start], 40), " has no finite text");
    pool.forget_parts();
    return check_widths(left_order);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
