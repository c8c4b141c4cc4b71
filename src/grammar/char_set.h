// grammar/char_set: sets of code points, and the bytes that write them as plain UTF-8 or within a JSON string.
//
// Owns    the translation of characters to expressions over bytes; every front end goes through it.
// Thread  no shared state.
// Tests   tests/test_grammar.cpp, tests/test_schema.cpp
#pragma once
#include "expr.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Ranges of code points: sorted, disjoint and without surrogates after normalize().
struct CharSet {
    struct Range {
        uint32_t first, last;
    };
    std::vector<Range> ranges;

    void add(uint32_t first, uint32_t last) { ranges.push_back({first, last}); }
    void add(uint32_t c) { add(c, c); }
    void add(const CharSet& o) { ranges.insert(ranges.end(), o.ranges.begin(), o.ranges.end()); }
    void normalize();
    CharSet complement() const;  ///< of a normalized set
    CharSet without(const CharSet& o) const;
    bool has(uint32_t c) const;
    static CharSet all();
};

/// How a character is written.
enum class Writing {
    plain,      ///< UTF-8
    canonical,  ///< within a JSON string, in one way: raw, or the shortest escape where JSON asks for one
};

/// One character of the set; the set is normalized.
ExprId write_set(ExprPool& pool, const CharSet& set, Writing writing);
/// A text, all of it.
std::string write_text(std::string_view text, Writing writing);
/// One character of a JSON string that nothing else constrains: every escape is allowed, surrogates in pairs only.
ExprId any_json_char(ExprPool& pool);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
