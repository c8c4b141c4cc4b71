// grammar/json_number: decimal numbers as they are written, and the texts of numbers within bounds.
//
// Owns    Decimal, exact for any number of digits, and expressions for ranges and multiples of JSON numbers.
// Thread  no shared state.
// Tests   tests/test_schema.cpp
#pragma once
#include "expr.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// 0.digits times 10^exponent; zero has no digits.
struct Decimal {
    bool negative = false;
    std::string digits;  ///< neither begins nor ends with 0
    int64_t exponent = 0;

    /// Reads a JSON number. False if its exponent is beyond any use (above 1000).
    static bool parse(std::string_view text, Decimal& out);
    bool is_zero() const { return digits.empty(); }
    bool is_integer() const { return static_cast<int64_t>(digits.size()) <= exponent || is_zero(); }
    /// -1, 0 or 1.
    static int compare(const Decimal& a, const Decimal& b);
    bool operator==(const Decimal& o) const { return compare(*this, o) == 0; }
    /// The digits before and after the point: "0" and "" at least.
    std::string whole() const;
    std::string fraction() const;
};

/// What a schema asks of a number.
struct NumberFacts {
    bool integers = true, others = true;  ///< which numbers the type allows
    bool bare_integers = false;           ///< 1.0 is no integer, as in draft 4
    bool has_low = false, has_high = false, low_open = false, high_open = false;
    Decimal low, high;
    std::vector<Decimal> multiples, not_multiples, excluded;

    void not_below(const Decimal& d, bool open);
    void not_above(const Decimal& d, bool open);
    /// Whether a number fits, but for its type.
    bool holds(const Decimal& d) const;
    bool is_multiple(const Decimal& d, const Decimal& of) const;
};

/// The numbers that fit.
///
/// errors    unsupported: a multipleOf of more than 6 digits; bounds of more than 39.
Result<ExprId> number_expr(ExprPool& pool, const NumberFacts& facts);
/// All ways to write one number without an exponent.
ExprId number_literal(ExprPool& pool, const Decimal& d);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
