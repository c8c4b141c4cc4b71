// grammar/expr: counted repetitions.
//
// Owns    what keeps the derivatives of counts within counts small: nested counts that are one count, and the parts of
//         a choice that another part covers; how long texts are; and what a count of digits says about multiples.
// Thread  as grammar/expr.h.
// Tests   tests/test_grammar.cpp
#include "expr.h"

#include <numeric>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace expr_impl {

constexpr unsigned kShapeElements = 64;  // of a sequence that are compared with another's
constexpr size_t kCompared = 16;         // parts that a part of a choice is compared with
constexpr uint32_t kMaxRoom = 40;        // the most digits that are tried
constexpr uint32_t kMaxRoomSteps = 200;  // expressions visited for each number of digits

uint64_t power10(uint32_t n) {
    uint64_t p = 1;
    for (; n > 0 && p <= UINT64_MAX / 10; --n) p *= 10;
    return p;
}

}  // namespace expr_impl

/// The counts of a repetition of a repetition, as one: false if a count between cannot be reached, or is too large.
bool ExprPool::nest(const ExprNode& inner, uint32_t& lo, uint32_t& hi) {
    const uint64_t a = inner.lo, b = inner.hi;
    // k times give a*k to b*k: the next range must begin before a gap, and the first two are the furthest apart.
    const bool no_gap = lo == hi || (lo == 0 ? a <= 1 : inner.hi == kUnbounded || a * (lo + uint64_t{1}) <= b * lo + 1);
    const bool endless = inner.hi == kUnbounded || hi == kUnbounded;
    const uint64_t product = endless ? 0 : b * hi;
    if (!no_gap || a * lo >= kUnbounded || product >= kUnbounded) return false;
    lo = static_cast<uint32_t>(a * lo);
    hi = endless ? kUnbounded : static_cast<uint32_t>(product);
    return true;
}

ExprId ExprPool::clip(ExprId e, uint32_t n) {
    if (nodes_[e].logic || !nodes_[e].regular) return e;
    std::vector<ExprId> elements;
    for (;;) {
        const bool last = nodes_[e].kind != ExprKind::concat;
        const ExprId first = last ? e : nodes_[e].a;
        const ExprNode node = nodes_[first];
        // Each time takes a byte at least: within n bytes a count above n is never used up.
        const bool counted = node.kind == ExprKind::repeat && !nodes_[node.a].nullable;
        const bool clipped = counted && ((node.hi > n && node.hi != kUnbounded) || node.lo > n + 1);
        elements.push_back(clipped ? repeat(node.a, std::min(node.lo, n + 1), node.hi > n ? kUnbounded : node.hi)
                                   : first);
        if (last) break;
        e = nodes_[e].b;
    }
    return concat(elements);
}

/// The counts of a sequence's elements; an element that is no repetition comes once.
struct ExprPool::Shape {
    uint64_t key = 0;    ///< alike in sequences that differ in counts only
    uint64_t n_way = 0;  ///< more than in any sequence that this one covers
    size_t i_part = 0;
};

ExprPool::Shape ExprPool::shape_of(ExprId e) const {
    Shape s;
    for (unsigned i = 0; i < expr_impl::kShapeElements && e != kEmptyText; ++i) {
        const Times t = times_of(e);
        s.key = mix_hash(s.key ^ t.element);
        s.n_way += t.hi - t.lo;
        e = t.rest;
    }
    s.key = mix_hash(s.key ^ uint64_t{e} << 32);
    return s;
}

ExprPool::Times ExprPool::times_of(ExprId e) const {
    Times t;
    const bool last = nodes_[e].kind != ExprKind::concat;
    t.element = last ? e : nodes_[e].a;
    t.rest = last ? kEmptyText : nodes_[e].b;
    const ExprNode& n = nodes_[t.element];
    if (n.kind != ExprKind::repeat) return t;
    t.element = n.a;
    t.lo = n.lo;
    t.hi = n.hi;
    return t;
}

bool ExprPool::covers(ExprId a, ExprId b) const {
    for (unsigned i = 0; i < expr_impl::kShapeElements && a != b; ++i) {
        if (a == kEmptyText || b == kEmptyText) return false;
        const Times x = times_of(a), y = times_of(b);
        if (x.element != y.element || x.lo > y.lo || x.hi < y.hi) return false;
        a = x.rest;
        b = y.rest;
    }
    return a == b;
}

/// Leaves out sequences that another one covers. Without it, counts within counts would give a part for each
/// combination of counts that a text may have reached.
void ExprPool::drop_covered(std::vector<ExprId>& parts) const {
    std::vector<Shape> shapes;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (!nodes_[parts[i]].counted) continue;
        shapes.push_back(shape_of(parts[i]));
        shapes.back().i_part = i;
    }
    if (shapes.size() < 2) return;
    std::sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) {
        return a.key != b.key ? a.key < b.key : a.n_way != b.n_way ? a.n_way > b.n_way : a.i_part < b.i_part;
    });
    size_t n_kept = 0;
    std::vector<ExprId> dropped;
    for (const Shape& s : shapes) {
        bool covered = false;
        for (size_t k = n_kept; k-- > 0 && !covered && n_kept - k <= expr_impl::kCompared && shapes[k].key == s.key;)
            covered = covers(parts[shapes[k].i_part], parts[s.i_part]);
        if (covered)
            dropped.push_back(parts[s.i_part]);
        else
            shapes[n_kept++] = s;
    }
    if (dropped.empty()) return;
    std::sort(dropped.begin(), dropped.end());
    const auto is_dropped = [&](ExprId p) { return std::binary_search(dropped.begin(), dropped.end(), p); };
    parts.erase(std::remove_if(parts.begin(), parts.end(), is_dropped), parts.end());
}

/// The fewest digits that make a number with the remainder b a multiple of a. More digits do as well: zeros.
uint32_t ExprPool::fewest_digits(uint64_t modulus, uint64_t remainder) {
    uint64_t power = 1;  // the n digits are a number below it
    uint32_t n = 0;
    for (; (modulus - remainder) % modulus >= power; ++n) {
        remainder = remainder * 10 % modulus;
        power *= 10;
    }
    return n;
}

ExprPool::Lengths ExprPool::lengths_of(const ExprNode& n) const {
    const auto capped = [](uint64_t bytes) { return static_cast<uint32_t>(std::min<uint64_t>(bytes, kUnbounded)); };
    const auto product = [&](uint32_t bytes, uint32_t times) {
        return bytes == 0 || times == 0 ? 0 : times == kUnbounded ? kUnbounded : capped(uint64_t{bytes} * times);
    };
    Lengths all;
    switch (n.kind) {
        case ExprKind::none:
        case ExprKind::empty: return {0, 0};
        case ExprKind::bytes: return {1, 1};
        case ExprKind::text: return {n.b, n.b};
        case ExprKind::multiple: return {fewest_digits(n.a, n.b), kUnbounded};
        case ExprKind::concat:
            all.shortest = capped(uint64_t{lengths_[n.a].shortest} + lengths_[n.b].shortest);
            all.longest = capped(uint64_t{lengths_[n.a].longest} + lengths_[n.b].longest);
            return all;
        case ExprKind::choice:
            all = {kUnbounded, 0};
            for (uint32_t i = 0; i < n.b; ++i) {
                const Lengths one = lengths_[lists_[n.a + i]];
                all = {std::min(all.shortest, one.shortest), std::max(all.longest, one.longest)};
            }
            return all;
        case ExprKind::both:
            for (uint32_t i = 0; i < n.b; ++i) {
                const Lengths one = lengths_[lists_[n.a + i]];
                all = {std::max(all.shortest, one.shortest), std::min(all.longest, one.longest)};
            }
            return all;
        case ExprKind::except: return {n.nullable ? 0u : 1u, kUnbounded};
        case ExprKind::repeat: return {product(lengths_[n.a].shortest, n.lo), product(lengths_[n.a].longest, n.hi)};
        default: return all;
    }
}

ExprPool::Lengths ExprPool::lengths(ExprId e) {
    // What is within an expression was made before it.
    while (lengths_.size() <= e) lengths_.push_back(lengths_of(nodes_[lengths_.size()]));
    return lengths_[e];
}

bool ExprPool::no_length_fits(const std::vector<ExprId>& parts) {
    Lengths all;
    for (const ExprId p : parts)
        all = {std::max(all.shortest, lengths(p).shortest), std::min(all.longest, lengths(p).longest)};
    return all.shortest > all.longest;
}

/// Whether every text of n digits matches, multiples aside. n digits must reach each remainder of `modulus`, their
/// least common multiple: then some text matches them all, as their remainders are those of one number.
bool ExprPool::takes_digits(ExprId e, uint32_t n, uint64_t& modulus, uint32_t& n_left) const {
    const ExprNode& node = nodes_[e];
    if (n_left == 0) return false;
    --n_left;
    switch (node.kind) {
        case ExprKind::repeat: {
            const ExprNode& one = nodes_[node.a];
            if (n < node.lo || n > node.hi || one.kind != ExprKind::bytes) return false;
            for (unsigned b = '0'; b <= '9'; ++b)
                if (!sets_[one.a].has(b)) return false;
            return true;
        }
        case ExprKind::multiple: {
            const uint64_t factor = node.a / std::gcd(modulus, uint64_t{node.a});
            if (modulus > expr_impl::power10(n) / factor) return false;
            modulus *= factor;
            return true;
        }
        case ExprKind::concat: return nodes_[node.b].nullable && takes_digits(node.a, n, modulus, n_left);
        case ExprKind::choice:
            for (const ExprId p : parts(e)) {
                uint64_t with = modulus;
                if (!takes_digits(p, n, with, n_left)) continue;
                modulus = with;
                return true;
            }
            return false;
        case ExprKind::both:
            for (const ExprId p : parts(e))
                if (!takes_digits(p, n, modulus, n_left)) return false;
            return true;
        default: return false;
    }
}

bool ExprPool::has_room_for_digits(ExprId e) const {
    if (!has_multiples_ || nodes_[e].kind != ExprKind::both) return false;
    for (uint32_t n = 1; n <= expr_impl::kMaxRoom; ++n) {
        uint64_t modulus = 1;
        uint32_t n_left = expr_impl::kMaxRoomSteps;
        if (takes_digits(e, n, modulus, n_left)) return true;
        if (n_left == 0) return false;
    }
    return false;
}

/// d, then rest, as parts of a choice. Parts with counts are kept flat: a choice can compare them.
void ExprPool::add_ways(ExprId d, ExprId rest, std::vector<ExprId>& ways) {
    if (nodes_[d].kind != ExprKind::choice || !nodes_[d].counted) {
        ways.push_back(concat(d, rest));
        return;
    }
    for (uint32_t i = 0; i < nodes_[d].b; ++i) ways.push_back(concat(lists_[nodes_[d].a + i], rest));
}

ExprId ExprPool::joined(ExprId d, ExprId rest) {
    if (nodes_[d].kind != ExprKind::choice || !nodes_[d].counted) return concat(d, rest);
    std::vector<ExprId> ways;
    add_ways(d, rest, ways);
    return choice(std::move(ways));
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
