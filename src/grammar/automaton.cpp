#include "automaton.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace automaton_impl {

constexpr size_t kMaxExpansions = 20000;  // that make one state
constexpr size_t kExpansionsEach = 8;     // of a reading, where more than usual are kept

}  // namespace automaton_impl

Automaton::Automaton(std::shared_ptr<const Rules> rules)
    : base_(std::move(rules)), rules_(*base_), classes_(rules_.pool.classes()), states_(1), links_(1) {
    steps_.set_classes(classes_.n);
    steps_.add();
}

StateId Automaton::start() { return state_of({{rules_.pool.rule(rules_.start), 0}}); }

void Automaton::Closure::add(ExprId e, uint32_t stack) {
    if (e == kNoMatch) return;
    const Reading r{e, stack};
    if (done.size() < 24) {
        if (std::find(done.begin(), done.end(), r) != done.end()) return;
        done.push_back(r);
        if (done.size() == 24)
            for (const Reading& d : done) many.emplace(uint64_t{d.expr} << 32 | d.stack, true);
    } else if (!many.emplace(uint64_t{e} << 32 | stack, true).second) {
        return;
    }
    open.push_back(r);
}

uint32_t Automaton::push(ExprId e, uint32_t stack) {
    if (e == kEmptyText) return stack;
    make_room(links_);
    const auto found = link_index_.emplace(uint64_t{e} << 32 | stack, static_cast<uint32_t>(links_.size()));
    if (found.second) links_.push_back({e, stack, links_[stack].depth + 1});
    return found.first->second;
}

/// Divides a sequence: what is matched as one regular expression, or one element that is none; and the rest, which
/// goes on the stack. A long repetition is cut off after the element that ends it, so that its expression is the same
/// wherever it is used, and what is known about its tokens serves everywhere.
std::pair<ExprId, ExprId> Automaton::split(ExprId e) {
    const ExprPool& pool = rules_.pool;
    if (!pool[pool[e].a].regular) return {pool[e].a, pool[e].b};
    const auto known = split_.find(e);
    return known != split_.end() ? known->second : split_.emplace(e, split_slowly(e)).first->second;
}

std::pair<ExprId, ExprId> Automaton::split_slowly(ExprId e) {
    ExprPool& pool = rules_.pool;
    std::vector<ExprId> unit;
    bool wide = false;
    ExprId rest = e;
    while (rest != kEmptyText) {
        const bool last = pool[rest].kind != ExprKind::concat;
        const ExprId first = last ? rest : pool[rest].a;
        if (!pool[first].regular) break;
        unit.push_back(first);
        rest = last ? kEmptyText : pool[rest].b;
        if (wide) break;
        wide = pool[first].wide;
    }
    return {pool.concat(unit), rest};
}

void Automaton::emit(Closure& c, const Reading& r) {
    if (c.readings.size() < max_readings() && links_[r.stack].depth < kMaxDepth)
        c.readings.push_back(r);
    else
        c.narrowed = true;
    if (rules_.pool[r.expr].nullable) c.add(kEmptyText, r.stack);
}

/// Divides a choice: plain parts, of which there may be thousands, stay one expression.
void Automaton::divide(Closure& c, const Reading& r) {
    ExprPool& pool = rules_.pool;
    auto known = plain_.find(r.expr);
    if (known == plain_.end()) {
        std::vector<ExprId> plain;
        for (const ExprId p : pool.parts(r.expr))
            if (pool[p].is_plain()) plain.push_back(p);
        known = plain_.emplace(r.expr, pool.choice(std::move(plain))).first;
    }
    c.add(known->second, r.stack);
    for (const ExprId p : pool.parts(r.expr))
        if (!pool[p].is_plain()) c.add(p, r.stack);
}

void Automaton::expand(Closure& c, const Reading& r) {
    ExprPool& pool = rules_.pool;
    const ExprNode n = pool[r.expr];
    if (n.kind == ExprKind::empty) {
        if (r.stack == 0) {
            c.accepting = true;
        } else {
            const Link top = links_[r.stack];
            c.add(top.expr, top.next);
        }
    } else if (n.kind == ExprKind::concat && (n.wide || !n.regular)) {
        const std::pair<ExprId, ExprId> parts = split(r.expr);
        if (pool[parts.first].regular)
            emit(c, {parts.first, push(parts.second, r.stack)});
        else
            c.add(parts.first, push(parts.second, r.stack));
    } else if (n.kind == ExprKind::choice && (n.wide || !n.regular)) {
        divide(c, r);
    } else if (n.regular) {
        emit(c, r);
    } else if (n.kind == ExprKind::repeat) {
        if (n.lo == 0) c.add(kEmptyText, r.stack);
        const uint32_t lo = n.lo == 0 ? 0 : n.lo - 1, hi = n.hi == kUnbounded ? n.hi : n.hi - 1;
        c.add(n.a, push(pool.repeat(n.a, lo, hi), r.stack));
    } else if (n.kind == ExprKind::rule) {
        c.add(rules_.body[n.a], r.stack);
    } else if (n.kind == ExprKind::token) {
        c.terminals.push_back({n.a, r.stack});
    } else if (n.kind == ExprKind::members || n.kind == ExprKind::key) {
        const auto known = expanded_.find(r.expr);
        const ExprId ways = known != expanded_.end() ? known->second : rules_.expand_members(r.expr);
        if (known == expanded_.end()) expanded_.emplace(r.expr, ways);
        c.add(ways, r.stack);
    }
}

void Automaton::close(Closure& c) {
    const size_t max = std::max(automaton_impl::kMaxExpansions, automaton_impl::kExpansionsEach * max_readings());
    for (size_t n = 0; !c.open.empty() && n < max; ++n) {
        const Reading r = c.open.back();
        c.open.pop_back();
        expand(c, r);
    }
    c.narrowed = c.narrowed || !c.open.empty();
}

StateId Automaton::intern(Closure& c) {
    for (std::vector<Reading>* list : {&c.readings, &c.terminals}) {
        std::sort(list->begin(), list->end());
        list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    if (c.readings.empty() && c.terminals.empty() && !c.accepting && !c.narrowed) return kDead;
    Fnv key;
    key.mix((c.accepting ? 2u : 1u) | (c.narrowed ? 4u : 0u));
    for (const Reading& r : c.readings) key.mix(uint64_t{r.expr} << 32 | r.stack);
    key.mix(c.readings.size());
    for (const Reading& r : c.terminals) key.mix(uint64_t{r.expr} << 32 | r.stack);
    const auto same = state_index_.equal_range(key.value);
    for (auto it = same.first; it != same.second; ++it) {
        const State& s = states_[it->second];
        const Reading* at = pool_.data() + s.at;
        if (s.accepting == c.accepting && s.narrowed == c.narrowed && s.n == c.readings.size() &&
            s.n_terminal == c.terminals.size() && std::equal(c.readings.begin(), c.readings.end(), at) &&
            std::equal(c.terminals.begin(), c.terminals.end(), at + s.n))
            return it->second;
    }
    make_room(states_);
    steps_.make_room();
    State s;
    s.at = static_cast<uint32_t>(pool_.size());
    s.n = static_cast<uint32_t>(c.readings.size());
    s.n_terminal = static_cast<uint32_t>(c.terminals.size());
    s.accepting = c.accepting;
    s.narrowed = c.narrowed;
    pool_.insert(pool_.end(), c.readings.begin(), c.readings.end());
    pool_.insert(pool_.end(), c.terminals.begin(), c.terminals.end());
    const StateId id = static_cast<StateId>(states_.size());
    states_.push_back(s);
    steps_.add();
    state_index_.emplace(key.value, id);
    return id;
}

StateId Automaton::state_of(const std::vector<Reading>& readings, bool narrowed) {
    Closure c;
    c.narrowed = narrowed;
    for (const Reading& r : readings) c.add(r.expr, r.stack);
    close(c);
    return intern(c);
}

StateId Automaton::after(uint32_t stack) {
    const auto known = after_.find(stack);
    if (known != after_.end()) return known->second;
    const StateId s = state_of({{kEmptyText, stack}});
    after_.emplace(stack, s);
    return s;
}

StateId Automaton::step_slowly(StateId s, unsigned byte_class) {
    Closure& c = scratch_;
    c.open.clear();
    c.readings.clear();
    c.terminals.clear();
    c.done.clear();
    if (!c.many.empty()) c.many.clear();
    c.accepting = false;
    const State from = states_[s];
    c.narrowed = false;
    for (uint32_t i = 0; i < from.n; ++i) {
        const Reading r = pool_[from.at + i];
        const ExprId rest = rules_.pool.derive(r.expr, byte_class);
        if (rest == kNoMatch) continue;
        if (rules_.pool[rest].crowded) {
            c.narrowed = true;
            continue;
        }
        // What is left of a reading stays one expression: it was divided where it began.
        if (rest == kEmptyText)
            c.add(kEmptyText, r.stack);
        else
            emit(c, {rest, r.stack});
    }
    // What is missing of this state is missing of the next one, if any reading goes on.
    c.narrowed = c.narrowed || (from.narrowed && (!c.readings.empty() || !c.open.empty()));
    close(c);
    const StateId to = intern(c);
    if (s == kDead) return to;
    steps_.set(s, byte_class, to);
    return to;
}

StateId Automaton::step_terminal(StateId s, uint32_t terminal) {
    std::vector<Reading> next;
    for (const Reading& r : terminals(s))
        if (r.expr == terminal) next.push_back({kEmptyText, r.stack});
    return next.empty() ? kDead : state_of(next, states_[s].narrowed);
}

StateId Automaton::merge(StateId a, StateId b) {
    if (a == kDead || a == b) return b;
    if (b == kDead) return a;
    Closure c;
    for (const StateId s : {a, b}) {
        c.accepting = c.accepting || states_[s].accepting;
        c.narrowed = c.narrowed || states_[s].narrowed;
        for (const Reading& r : readings(s)) c.readings.push_back(r);
        for (const Reading& r : terminals(s)) c.terminals.push_back(r);
    }
    return intern(c);
}

size_t Automaton::memory() const {
    return rules_.written_bytes + rules_.pool.memory() + states_.size() * (sizeof(State) + 48) +
           pool_.capacity() * sizeof(Reading) + links_.size() * (sizeof(Link) + 64) + steps_.memory() +
           (expanded_.size() + plain_.size() + split_.size() + after_.size()) * 32;
}

void Automaton::compact(std::vector<StateId>& keep) {
    Automaton next(base_);
    const size_t n_base = base_->pool.size();
    std::unordered_map<ExprId, ExprId> exprs;
    std::unordered_map<uint32_t, uint32_t> stacks{{0, 0}};
    std::unordered_map<StateId, StateId> states{{kDead, kDead}};
    const auto copy = [&](ExprId e) { return rules_.pool.copy_to(next.rules_.pool, e, n_base, exprs); };
    for (StateId& s : keep) {
        const auto known = states.find(s);
        if (known != states.end()) {
            s = known->second;
            continue;
        }
        Closure c;
        c.accepting = states_[s].accepting;
        c.narrowed = states_[s].narrowed;
        const uint32_t n = states_[s].n, n_all = n + states_[s].n_terminal;
        for (uint32_t i = 0; i < n_all; ++i) {
            const Reading r = pool_[states_[s].at + i];
            std::vector<uint32_t> path;
            uint32_t at = r.stack;
            for (; stacks.count(at) == 0; at = links_[at].next) path.push_back(at);
            uint32_t copied = stacks[at];
            for (; !path.empty(); path.pop_back()) {
                copied = next.push(copy(links_[path.back()].expr), copied);
                stacks.emplace(path.back(), copied);
            }
            (i < n ? c.readings : c.terminals).push_back({i < n ? copy(r.expr) : r.expr, copied});
        }
        const StateId to = next.intern(c);
        states.emplace(s, to);
        s = to;
    }
    next.rules_.written = std::move(rules_.written);
    next.rules_.written_index = std::move(rules_.written_index);
    next.rules_.written_bytes = rules_.written_bytes;
    *this = std::move(next);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
