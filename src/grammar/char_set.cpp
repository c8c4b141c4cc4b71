#include "char_set.h"

#include "../base/json.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace char_set_impl {

constexpr uint32_t kLast = 0x10FFFF;

/// The characters first..last, which take `n` bytes each, as a tree of byte ranges.
ExprId write_range(ExprPool& pool, uint32_t first, uint32_t last, unsigned n, bool leading) {
    const auto byte = [&](uint32_t c) -> unsigned {
        if (!leading) return 0x80u | (c >> (6 * (n - 1)) & 0x3F);
        static constexpr unsigned kMark[] = {0, 0, 0xC0, 0xE0, 0xF0};
        return kMark[n] | c >> (6 * (n - 1));
    };
    if (n == 1) {
        ByteSet set;
        set.add(leading ? first : byte(first), leading ? last : byte(last));
        return pool.bytes(set);
    }
    const uint32_t step = uint32_t{1} << (6 * (n - 1)), mask = step - 1;
    std::vector<ExprId> ways;
    while (first <= last) {
        // A run of leading bytes that each allow everything after them, or one that does not.
        uint32_t end = (first & mask) == 0 && last - first >= mask ? ((last + 1) & ~mask) - 1 : (first | mask);
        if (end > last) end = last;
        ByteSet set;
        set.add(byte(first), byte(end));
        const uint32_t low = first & mask, high = end & mask;
        ways.push_back(pool.concat(pool.bytes(set), write_range(pool, low, high, n - 1, false)));
        if (end == last) break;
        first = end + 1;
    }
    return pool.choice(std::move(ways));
}

ExprId write_utf8(ExprPool& pool, const CharSet& set) {
    static constexpr uint32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF, kLast};
    std::vector<ExprId> ways;
    for (const CharSet::Range& r : set.ranges) {
        uint32_t first = r.first;
        for (unsigned n = 1; n <= 4 && first <= r.last; ++n) {
            const uint32_t end = std::min(kEnds[n - 1], r.last);
            if (first > end) continue;
            ways.push_back(write_range(pool, first, end, n, true));
            first = end + 1;
        }
    }
    return pool.choice(std::move(ways));
}

}  // namespace char_set_impl

void CharSet::normalize() {
    CharSet clean;
    for (const Range& r : ranges) {
        if (r.first < 0xD800 && r.last >= 0xD800) clean.add(r.first, 0xD7FF);
        if (r.first <= 0xDFFF && r.last > 0xDFFF) clean.add(0xE000, r.last);
        if (r.last < 0xD800 || r.first > 0xDFFF) clean.add(r.first, r.last);
    }
    std::sort(clean.ranges.begin(), clean.ranges.end(),
              [](const Range& a, const Range& b) { return a.first < b.first; });
    ranges.clear();
    for (const Range& r : clean.ranges) {
        if (!ranges.empty() && r.first <= ranges.back().last + 1)
            ranges.back().last = std::max(ranges.back().last, r.last);
        else
            ranges.push_back(r);
    }
}

CharSet CharSet::complement() const {
    CharSet out;
    uint32_t next = 0;
    for (const Range& r : ranges) {
        if (r.first > next) out.add(next, r.first - 1);
        next = r.last + 1;
    }
    if (next <= char_set_impl::kLast) out.add(next, char_set_impl::kLast);
    out.normalize();
    return out;
}

CharSet CharSet::without(const CharSet& o) const {
    CharSet join = complement();
    join.add(o);
    join.normalize();
    return join.complement();
}

bool CharSet::has(uint32_t c) const {
    for (const Range& r : ranges)
        if (c >= r.first && c <= r.last) return true;
    return false;
}

CharSet CharSet::all() {
    CharSet set;
    set.add(0, char_set_impl::kLast);
    set.normalize();
    return set;
}

ExprId write_set(ExprPool& pool, const CharSet& set, Writing writing) {
    using namespace char_set_impl;
    if (writing == Writing::plain) return write_utf8(pool, set);
    CharSet escaped;
    escaped.add(0, 0x1F);
    escaped.add('"');
    escaped.add('\\');
    escaped.normalize();
    std::vector<ExprId> ways{write_utf8(pool, set.without(escaped))};
    std::vector<std::string> texts;
    for (uint32_t c = 0; c <= '\\'; ++c)
        if (set.has(c) && json_must_escape(c)) texts.push_back(json_escape(c));
    ways.push_back(pool.one_of(std::move(texts)));
    return pool.choice(std::move(ways));
}

std::string write_text(std::string_view text, Writing writing) {
    return writing == Writing::plain ? std::string(text) : json_escaped(text);
}

ExprId any_json_char(ExprPool& pool) {
    CharSet raw;
    raw.add(0x20, 0x21);
    raw.add(0x23, 0x5B);
    raw.add(0x5D, char_set_impl::kLast);
    raw.normalize();
    const auto digits = [&pool](std::string_view chars) {
        ByteSet set;
        for (const char c : chars) set.add(static_cast<unsigned char>(c));
        return pool.bytes(set);
    };
    const ExprId hex = digits("0123456789abcdefABCDEF"), low = digits("01234567");
    const ExprId any2 = pool.repeat(hex, 2, 2), any3 = pool.repeat(hex, 3, 3);
    // Any code unit but a surrogate, or a pair of them.
    const ExprId unit =
        pool.choice({pool.concat(digits("0123456789abcefABCEF"), any3), pool.concat({digits("dD"), low, any2})});
    const ExprId pair =
        pool.concat({digits("dD"), digits("89abAB"), any2, pool.text("\\u"), digits("dD"), digits("cdefCDEF"), any2});
    const ExprId letters = digits("\"\\/bfnrt");
    const ExprId escape =
        pool.concat(pool.text("\\"), pool.choice(letters, pool.concat(pool.text("u"), pool.choice(unit, pair))));
    return pool.choice(char_set_impl::write_utf8(pool, raw), escape);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
