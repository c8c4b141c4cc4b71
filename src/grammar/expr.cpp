#include "expr.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace expr_impl {

constexpr unsigned kWideSet = 48;      // bytes of a set that makes a repetition wide
constexpr uint32_t kWideRepeat = 8;    // times
constexpr size_t kStepBudget = 50000;  // derivatives that one step may take to find out whether anything can follow
constexpr uint64_t kLongest = UINT32_MAX;
constexpr size_t kPartMemo = 8192;
constexpr size_t kMaxParts = 1024;  // of a choice with counts within, unless the grammar has a larger one

}  // namespace expr_impl

unsigned ByteSet::count() const {
    unsigned n = 0;
    for (uint64_t w : word)
        for (; w != 0; w &= w - 1) ++n;
    return n;
}

ExprPool::ExprPool() : table_(256, 0) {
    nodes_.push_back({});
    ExprNode empty;
    empty.kind = ExprKind::empty;
    empty.nullable = true;
    nodes_.push_back(empty);
    steps_.add();
    steps_.add();
    first_.assign(2, 0);
    live_.assign({2, 1});
}

// ------------------------------------------------------------------------------------- one of each

uint64_t ExprPool::hash(const ExprNode& node) const {
    uint64_t h = static_cast<uint64_t>(node.kind);
    if (node.kind == ExprKind::choice || node.kind == ExprKind::both) {
        for (uint32_t i = 0; i < node.b; ++i) h = mix_hash(h ^ lists_[node.a + i]);
        return mix_hash(h ^ node.b);
    }
    h = mix_hash(h ^ uint64_t{node.a} << 32 ^ node.b);
    return mix_hash(h ^ uint64_t{node.lo} << 32 ^ node.hi);
}

bool ExprPool::same(const ExprNode& a, const ExprNode& b) const {
    if (a.kind != b.kind) return false;
    if (a.kind != ExprKind::choice && a.kind != ExprKind::both) return a == b;
    return a.b == b.b && std::equal(lists_.begin() + a.a, lists_.begin() + a.a + a.b, lists_.begin() + b.a);
}

void ExprPool::index_node(ExprId e) {
    const size_t mask = table_.size() - 1;
    size_t i = static_cast<size_t>(hash(nodes_[e])) & mask;
    while (table_[i] != 0) i = (i + 1) & mask;
    table_[i] = e;
}

ExprId ExprPool::intern(ExprNode node) {
    const size_t mask = table_.size() - 1;
    for (size_t i = static_cast<size_t>(hash(node)) & mask; table_[i] != 0; i = (i + 1) & mask)
        if (same(nodes_[table_[i]], node)) return table_[i];
    const ExprId e = static_cast<ExprId>(nodes_.size());
    make_room(nodes_);
    make_room(first_);
    make_room(live_);
    steps_.make_room();
    if (2 * (nodes_.size() + 1) > table_.size()) {
        std::vector<uint32_t>(2 * table_.size(), 0).swap(table_);
        for (ExprId i = 2; i < e; ++i) index_node(i);
    }
    nodes_.push_back(node);
    first_.push_back(first_of(node));
    live_.push_back(node.logic ? 0 : 1);
    steps_.add();
    index_node(e);
    return e;
}

uint64_t ExprPool::first_of(const ExprNode& n) const {
    const auto bit = [&](unsigned byte) { return uint64_t{1} << (classes_.of[byte] % 64); };
    uint64_t first = 0;
    switch (n.kind) {
        case ExprKind::none:
        case ExprKind::empty: return 0;
        case ExprKind::bytes:
            for (unsigned c = 0; c < classes_.n; ++c)
                if (sets_[n.a].has(classes_.first[c])) first |= uint64_t{1} << (c % 64);
            return first;
        case ExprKind::text: return bit(static_cast<unsigned char>(texts_[n.a]));
        case ExprKind::concat: return first_[n.a] | (nodes_[n.a].nullable ? first_[n.b] : 0);
        case ExprKind::choice:
            for (uint32_t i = 0; i < n.b; ++i) first |= first_[lists_[n.a + i]];
            return first;
        case ExprKind::both:
            first = UINT64_MAX;
            for (uint32_t i = 0; i < n.b; ++i) first &= first_[lists_[n.a + i]];
            return first;
        case ExprKind::repeat: return first_[n.a];
        default: return UINT64_MAX;
    }
}

ExprId ExprPool::intern_list(ExprKind kind, const std::vector<ExprId>& parts) {
    ExprNode n;
    n.kind = kind;
    n.a = static_cast<uint32_t>(lists_.size());
    n.b = static_cast<uint32_t>(parts.size());
    n.logic = kind == ExprKind::both;
    n.nullable = kind == ExprKind::both;
    for (const ExprId p : parts) {
        lists_.push_back(p);
        n.inherit(nodes_[p]);
        n.nullable = kind == ExprKind::both ? n.nullable && nodes_[p].nullable : n.nullable || nodes_[p].nullable;
    }
    n.crowded = n.crowded || (kind == ExprKind::choice && n.counted && n.b > max_parts_);
    const size_t n_before = nodes_.size();
    const ExprId e = intern(n);
    if (nodes_.size() == n_before) lists_.resize(n.a);
    return e;
}

ExprId ExprPool::bytes(const ByteSet& set) {
    if (set.count() == 0) return kNoMatch;
    make_room(sets_);
    const auto found = set_index_.emplace(set.word, static_cast<uint32_t>(sets_.size()));
    if (found.second) sets_.push_back(set);
    ExprNode n;
    n.kind = ExprKind::bytes;
    n.a = found.first->second;
    return intern(n);
}

ExprId ExprPool::text(std::string_view text) {
    if (text.empty()) return kEmptyText;
    ExprNode n;
    n.kind = ExprKind::text;
    n.a = static_cast<uint32_t>(texts_.size());
    n.b = static_cast<uint32_t>(text.size());
    if (text.size() > 4) {
        texts_.append(text);
        return intern(n);
    }
    // Short texts repeat often; longer ones are not looked for.
    uint64_t key = text.size();
    for (const char c : text) key = key << 8 | static_cast<unsigned char>(c);
    const auto known = short_texts_.find(key);
    if (known != short_texts_.end()) {
        n.a = known->second;
    } else {
        texts_.append(text);
        short_texts_.emplace(key, n.a);
    }
    return intern(n);
}

ExprId ExprPool::multiple(uint32_t modulus, uint32_t remainder) {
    ExprNode n;
    n.kind = ExprKind::multiple;
    n.a = modulus;
    n.b = remainder;
    n.nullable = remainder == 0;
    has_multiples_ = true;
    return intern(n);
}

ExprId ExprPool::concat(ExprId a, ExprId b) {
    if (a == kNoMatch || b == kNoMatch) return kNoMatch;
    if (a == kEmptyText) return b;
    if (b == kEmptyText) return a;
    // Right-nested, so that the first element is found at once.
    if (nodes_[a].kind != ExprKind::concat) return pair(a, b);
    std::vector<ExprId> elements;
    while (nodes_[a].kind == ExprKind::concat) {
        elements.push_back(nodes_[a].a);
        a = nodes_[a].b;
    }
    elements.push_back(a);
    for (; !elements.empty(); elements.pop_back()) b = pair(elements.back(), b);
    return b;
}

ExprId ExprPool::pair(ExprId a, ExprId b) {
    ExprNode n;
    n.kind = ExprKind::concat;
    n.a = a;
    n.b = b;
    n.nullable = nodes_[a].nullable && nodes_[b].nullable;
    n.inherit(nodes_[a]);
    n.inherit(nodes_[b]);
    return intern(n);
}

ExprId ExprPool::concat(Span<const ExprId> parts, ExprId rest) {
    for (size_t i = parts.size(); i-- > 0;) rest = concat(parts[i], rest);
    return rest;
}

void ExprPool::flatten(ExprKind kind, std::vector<ExprId>& parts) const {
    for (size_t i = 0; i < parts.size(); ++i) {
        if (nodes_[parts[i]].kind != kind) continue;
        const Span<const ExprId> inner = this->parts(parts[i]);
        parts.insert(parts.end(), inner.begin(), inner.end());
        parts[i] = parts.back();
        parts.pop_back();
    }
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
}

void ExprPool::merge_sets(std::vector<ExprId>& parts) {
    ByteSet all;
    size_t n_set = 0;
    for (const ExprId p : parts) {
        if (nodes_[p].kind != ExprKind::bytes) continue;
        ++n_set;
        for (size_t w = 0; w < 4; ++w) all.word[w] |= sets_[nodes_[p].a].word[w];
    }
    if (n_set < 2) return;
    const ExprId merged = bytes(all);
    parts.erase(
        std::remove_if(parts.begin(), parts.end(), [this](ExprId p) { return nodes_[p].kind == ExprKind::bytes; }),
        parts.end());
    parts.push_back(merged);
    std::sort(parts.begin(), parts.end());
}

ExprId ExprPool::choice(std::vector<ExprId> parts) {
    parts.erase(std::remove(parts.begin(), parts.end(), kNoMatch), parts.end());
    flatten(ExprKind::choice, parts);
    merge_sets(parts);
    drop_covered(parts);
    // The empty text adds nothing where another part matches it.
    if (parts.size() > 1 && parts[0] == kEmptyText)
        for (size_t i = 1; i < parts.size(); ++i)
            if (nodes_[parts[i]].nullable) {
                parts.erase(parts.begin());
                break;
            }
    if (parts.empty()) return kNoMatch;
    if (parts.size() == 1) return parts[0];
    return intern_list(ExprKind::choice, parts);
}

ExprId ExprPool::both(std::vector<ExprId> parts) {
    flatten(ExprKind::both, parts);
    bool all_nullable = true, has_empty = false;
    std::vector<ExprId> kept;
    for (const ExprId p : parts) {
        if (p == kNoMatch) return kNoMatch;
        has_empty = has_empty || p == kEmptyText;
        all_nullable = all_nullable && nodes_[p].nullable;
        const bool excluded = nodes_[p].kind == ExprKind::except;
        if (excluded && nodes_[p].a == kNoMatch) continue;  // anything
        if (excluded && std::binary_search(parts.begin(), parts.end(), nodes_[p].a)) return kNoMatch;
        kept.push_back(p);
    }
    if (has_empty) return all_nullable ? kEmptyText : kNoMatch;
    if (no_length_fits(kept)) return kNoMatch;
    if (kept.empty()) return except(kNoMatch);
    if (kept.size() == 1) return kept[0];
    return intern_list(ExprKind::both, kept);
}

ExprId ExprPool::except(ExprId a) {
    if (nodes_[a].kind == ExprKind::except) return nodes_[a].a;
    ExprNode n;
    n.kind = ExprKind::except;
    n.a = a;
    n.nullable = !nodes_[a].nullable;
    n.inherit(nodes_[a]);
    n.logic = a != kNoMatch;
    return intern(n);
}

ExprId ExprPool::repeat(ExprId a, uint32_t lo, uint32_t hi) {
    if (hi == 0 || a == kEmptyText) return kEmptyText;
    if (a == kNoMatch) return lo == 0 ? kEmptyText : kNoMatch;
    if (lo == 1 && hi == 1) return a;
    if (nodes_[a].kind == ExprKind::repeat && nodes_[a].lo == 0 && nodes_[a].hi == kUnbounded) return a;
    if (nodes_[a].kind == ExprKind::repeat && nodes_[a].regular && nest(nodes_[a], lo, hi)) a = nodes_[a].a;
    if (nodes_[a].regular && nodes_[a].nullable) lo = 0;
    if (lo == 0 && hi == 1) return optional(a);
    ExprNode n;
    n.kind = ExprKind::repeat;
    n.a = a;
    n.lo = lo;
    n.hi = hi;
    n.nullable = lo == 0;
    n.inherit(nodes_[a]);
    n.counted = n.counted || lo > 1 || hi != kUnbounded;
    if (hi >= expr_impl::kWideRepeat) {
        // A set of its own, or one alternative of an element that is written again and again.
        const auto is_wide = [this](ExprId e) {
            return nodes_[e].kind == ExprKind::bytes && sets_[nodes_[e].a].count() >= expr_impl::kWideSet;
        };
        n.wide = n.wide || is_wide(a);
        if (nodes_[a].kind == ExprKind::choice)
            for (const ExprId p : parts(a)) n.wide = n.wide || is_wide(p);
    }
    return intern(n);
}

/// What grammar/automaton expands.
ExprId ExprPool::deferred(ExprKind kind, uint32_t a, uint32_t b, uint32_t lo, uint32_t hi) {
    ExprNode n;
    n.kind = kind;
    n.regular = false;
    n.a = a;
    n.b = b;
    n.lo = lo;
    n.hi = hi;
    return intern(n);
}

ExprId ExprPool::one_of_range(const std::vector<std::string_view>& texts, size_t first, size_t last, size_t depth) {
    // Every text of the range agrees up to `depth`.
    if (last - first == 1) return text(texts[first].substr(depth));
    size_t common = depth;
    const std::string_view low = texts[first], high = texts[last - 1];
    while (common < low.size() && common < high.size() && low[common] == high[common]) ++common;
    std::vector<ExprId> branches;
    size_t at = first;
    if (texts[at].size() == common) {
        branches.push_back(kEmptyText);
        ++at;
    }
    while (at < last) {
        size_t end = at + 1;
        while (end < last && texts[end][common] == texts[at][common]) ++end;
        // One byte at a time bounds the depth of the recursion by the bytes that texts share.
        branches.push_back(one_of_range(texts, at, end, common));
        at = end;
    }
    return concat(text(low.substr(depth, common - depth)), choice(std::move(branches)));
}

ExprId ExprPool::one_of(std::vector<std::string> texts) {
    std::vector<std::string_view> sorted;
    for (const uint32_t i : sorted_indices(texts.size(), [&](uint32_t a, uint32_t b) { return texts[a] < texts[b]; }))
        if (sorted.empty() || sorted.back() != texts[i]) sorted.push_back(texts[i]);
    if (sorted.empty()) return kNoMatch;
    return one_of_range(sorted, 0, sorted.size(), 0);
}

ExprId ExprPool::any_text() {
    ByteSet all;
    all.add(0, 255);
    return repeat(bytes(all), 0, kUnbounded);
}

ExprId ExprPool::without(const std::vector<std::string>& texts) {
    const ExprId any = any_text();
    return except(concat({any, one_of(texts), any}));
}

// --------------------------------------------------------------------------------------- derivatives

void ExprPool::close() {
    // Bytes are refined set by set; a byte of a text is a set of its own.
    std::array<uint32_t, 256> of{};
    uint32_t n = 1;
    const auto refine = [&](const ByteSet& set) {
        std::array<uint32_t, 256> moved{};
        std::array<bool, 256> outside{};
        for (unsigned b = 0; b < 256; ++b)
            if (!set.has(b)) outside[of[b]] = true;
        for (unsigned b = 0; b < 256; ++b) {
            if (!set.has(b) || !outside[of[b]]) continue;
            uint32_t& to = moved[of[b]];
            if (to == 0) to = n++;
            of[b] = to;
        }
    };
    for (const ByteSet& set : sets_) refine(set);
    ByteSet used;
    for (const ExprNode& node : nodes_)
        if (node.kind == ExprKind::text)
            for (const char c : texts_.substr(node.a, node.b)) used.add(static_cast<unsigned char>(c));
    for (const ExprNode& node : nodes_)
        if (node.kind == ExprKind::multiple) {
            used.add('0', '9');
            used.add('.');
        }
    for (unsigned b = 0; b < 256; ++b) {
        ByteSet one;
        one.add(b);
        if (used.has(b)) refine(one);
    }
    classes_.n = static_cast<uint16_t>(n);
    short_texts_ = {};
    max_parts_ = expr_impl::kMaxParts;
    for (const ExprNode& node : nodes_)
        if (node.kind == ExprKind::choice) max_parts_ = std::max<size_t>(max_parts_, node.b);
    steps_.set_classes(n);
    for (unsigned b = 256; b-- > 0;) {
        classes_.of[b] = static_cast<uint8_t>(of[b]);
        classes_.first[of[b]] = static_cast<uint8_t>(b);
    }
    for (ExprId e = 0; e < nodes_.size(); ++e) first_[e] = first_of(nodes_[e]);
}

ExprId ExprPool::derive_slowly(ExprId e, unsigned byte_class) {
    ExprId d = derivative(e, byte_class);
    if (d != kNoMatch && nodes_[d].logic) {
        search_budget_ = max_search_ = expr_impl::kStepBudget;
        is_running_ = true;
        if (!live(d)) d = kNoMatch;
    }
    steps_.set(e, byte_class, d);
    return d;
}

ExprId ExprPool::derive_part(ExprId e, unsigned byte_class) {
    if (!may_begin(e, byte_class)) return kNoMatch;
    const ExprKind kind = nodes_[e].kind;
    // Only what has parts is worth remembering: shared parts would otherwise be derived once per path to them.
    if (kind != ExprKind::choice && kind != ExprKind::both && kind != ExprKind::concat && kind != ExprKind::repeat &&
        kind != ExprKind::except)
        return derivative(e, byte_class);
    const uint64_t key = uint64_t{e} << 8 | byte_class;
    if (part_memo_.empty()) part_memo_.resize(expr_impl::kPartMemo);
    const size_t slot = static_cast<size_t>(mix_hash(key)) % expr_impl::kPartMemo;
    if (part_memo_[slot].first == key) return part_memo_[slot].second;
    const ExprId d = derivative(e, byte_class);
    part_memo_[slot] = {key, d};
    return d;
}

ExprId ExprPool::derive_concat(ExprId e, unsigned byte_class) {
    const ExprNode whole = nodes_[e];
    if (!nodes_[whole.a].nullable) return joined(derive_part(whole.a, byte_class), whole.b);
    std::vector<ExprId> ways;
    for (;;) {
        if (nodes_[e].kind != ExprKind::concat) {
            ways.push_back(derive_part(e, byte_class));
            break;
        }
        const ExprId first = nodes_[e].a, rest = nodes_[e].b;
        add_ways(derive_part(first, byte_class), rest, ways);
        if (!nodes_[first].nullable) break;
        e = rest;
    }
    return ways.size() == 1 ? ways[0] : choice(std::move(ways));
}

ExprId ExprPool::derivative(ExprId e, unsigned byte_class) {
    const ExprNode n = nodes_[e];
    const unsigned byte = classes_.first[byte_class];
    switch (n.kind) {
        case ExprKind::bytes: return sets_[n.a].has(byte) ? kEmptyText : kNoMatch;
        case ExprKind::text: {
            if (static_cast<unsigned char>(texts_[n.a]) != byte) return kNoMatch;
            if (n.b == 1) return kEmptyText;
            ExprNode rest = n;
            ++rest.a;
            --rest.b;
            return intern(rest);
        }
        case ExprKind::multiple:
            if (byte == '.') return e;
            if (byte < '0' || byte > '9') return kNoMatch;
            return multiple(n.a, static_cast<uint32_t>((uint64_t{n.b} * 10 + (byte - '0')) % n.a));
        case ExprKind::concat: return derive_concat(e, byte_class);
        case ExprKind::choice:
        case ExprKind::both: {
            std::vector<ExprId> parts;
            parts.reserve(n.b);
            for (uint32_t i = 0; i < n.b; ++i) {
                const ExprId d = derive_part(lists_[n.a + i], byte_class);
                if (d == kNoMatch && n.kind == ExprKind::both) return kNoMatch;
                if (d != kNoMatch) parts.push_back(d);
            }
            if (parts.size() == 1) return parts[0];
            return n.kind == ExprKind::both ? both(std::move(parts)) : choice(std::move(parts));
        }
        case ExprKind::except: return except(derive_part(n.a, byte_class));
        case ExprKind::repeat: {
            const ExprId d = derive_part(n.a, byte_class);
            if (d == kNoMatch) return kNoMatch;
            return joined(d, repeat(n.a, n.lo == 0 ? 0 : n.lo - 1, n.hi == kUnbounded ? n.hi : n.hi - 1));
        }
        default: return kNoMatch;
    }
}

// --------------------------------------------------------------------------------- matches something

bool ExprPool::live(ExprId e) {
    while (nodes_[e].kind == ExprKind::concat) {
        if (!nodes_[e].logic) return true;
        if (!live(nodes_[e].a)) return false;
        e = nodes_[e].b;
    }
    if (live_[e] != 0) return live_[e] == 1;
    bool result = false;
    const ExprNode n = nodes_[e];
    if (n.kind == ExprKind::choice) {
        // While a text is written, an alternative that cannot be decided leaves the others their share of the steps.
        for (uint32_t i = 0; i < n.b && !result; ++i) {
            const size_t kept = is_running_ ? search_budget_ - search_budget_ / (n.b - i) : 0;
            search_budget_ -= kept;
            result = live(lists_[n.a + i]);
            search_budget_ += kept;
        }
    } else if (n.kind == ExprKind::repeat) {
        result = n.lo == 0 || live(n.a);
    } else {
        return search(e);
    }
    live_[e] = result ? 1 : 2;
    return result;
}

/// Searches for the shortest text first: a place counts the bytes up to it and the fewest that may follow.
bool ExprPool::search(ExprId e) {
    if (nodes_[e].nullable) {
        live_[e] = 1;
        return true;
    }
    if (gave_up_ && !is_running_) return false;  // the grammar is refused
    size_t budget = std::min(search_budget_, max_search_);
    std::vector<ExprId> queue{e};
    std::vector<size_t> from{0};
    std::vector<uint32_t> depth{0};
    ExprSet queued{{e, e}};
    // Among texts that may be equally long, the one that lacks the fewest bytes comes first.
    using Open = std::pair<uint64_t, size_t>;
    std::vector<Open> open{{0, 0}};
    const auto matches_something = [&](size_t at) {
        for (; at > 0; at = from[at]) live_[queue[at]] = 1;
        live_[e] = 1;
        return true;
    };
    while (!open.empty()) {
        std::pop_heap(open.begin(), open.end(), std::greater<Open>());
        const size_t at = open.back().second;
        open.pop_back();
        if (has_room_for_digits(queue[at])) return matches_something(at);
        // The class that led on the last time is tried first: mostly it leads on again.
        for (unsigned i = 0; i < classes_.n; ++i) {
            const unsigned c = i == 0 ? hint_ : i == hint_ ? 0 : i;
            const ExprId d = derive_part(queue[at], c);
            if (d == kNoMatch || live_[d] == 2) continue;
            if (nodes_[d].nullable || live_[d] == 1) {
                live_[d] = 1;
                hint_ = c;
                return matches_something(at);
            }
            if (!queued.emplace(d, d).second) continue;
            const uint64_t missing = lengths(d).shortest,
                           whole = std::min(depth[at] + 1 + missing, expr_impl::kLongest);
            open.emplace_back(whole << 32 | missing, queue.size());
            std::push_heap(open.begin(), open.end(), std::greater<Open>());
            queue.push_back(d);
            from.push_back(at);
            depth.push_back(depth[at] + 1);
        }
        // A derivative of many parts takes as many steps.
        const ExprNode& n = nodes_[queue[at]];
        const size_t n_part = n.kind == ExprKind::both || n.kind == ExprKind::choice ? n.b : 1;
        const size_t n_step = std::min<size_t>(budget, classes_.n * (1 + n_part / 16));
        budget -= n_step;
        search_budget_ -= n_step;
        if (budget == 0) {
            gave_up_ = true;
            live_[e] = 2;
            return false;
        }
    }
    for (const ExprId q : queue) live_[q] = 2;
    return false;
}

// ---------------------------------------------------------------------------------------------- memory

size_t ExprPool::memory() const {
    return nodes_.capacity() * sizeof(ExprNode) + (first_.capacity() + lengths_.capacity()) * 8 +
           (lists_.capacity() + table_.capacity()) * 4 + steps_.memory() + live_.capacity() + texts_.capacity() +
           sets_.capacity() * sizeof(ByteSet) + part_memo_.size() * 16;
}

ExprId ExprPool::copy_to(ExprPool& other, ExprId e, size_t n_base, std::unordered_map<ExprId, ExprId>& done) const {
    if (e < n_base) return e;
    const auto found = done.find(e);
    if (found != done.end()) return found->second;
    ExprNode n = nodes_[e];
    ExprId copy = kNoMatch;
    if (n.kind == ExprKind::concat) {
        std::vector<ExprId> elements;
        ExprId rest = e;
        for (; rest >= n_base && nodes_[rest].kind == ExprKind::concat; rest = nodes_[rest].b)
            elements.push_back(copy_to(other, nodes_[rest].a, n_base, done));
        copy = other.concat(elements, copy_to(other, rest, n_base, done));
    } else if (n.kind == ExprKind::choice || n.kind == ExprKind::both) {
        std::vector<ExprId> parts;
        for (const ExprId p : this->parts(e)) parts.push_back(copy_to(other, p, n_base, done));
        std::sort(parts.begin(), parts.end());
        copy = other.intern_list(n.kind, parts);
    } else if (n.kind == ExprKind::except || n.kind == ExprKind::repeat || n.kind == ExprKind::key) {
        n.a = copy_to(other, n.a, n_base, done);
        copy = other.intern(n);
    } else if (n.kind == ExprKind::bytes) {
        copy = other.bytes(sets_[n.a]);
    } else {
        copy = other.intern(n);  // texts, rules, tokens and members refer to what the grammar holds
    }
    done.emplace(e, copy);
    return copy;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
