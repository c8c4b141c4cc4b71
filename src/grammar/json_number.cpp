#include "json_number.h"

#include <numeric>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace json_number_impl {

constexpr uint32_t kMaxDigits = 40;  // before the point, and after it: nothing longer is written
constexpr size_t kMaxModulusDigits = 6, kMaxModulusDecimals = 8;

/// Expressions of digits. Texts of numbers without sign and exponent: bounds compare them digit by digit.
struct Digits {
    ExprPool& pool;
    ExprId any = set('0', '9'), nonzero = set('1', '9');
    ExprId zeros = pool.repeat(pool.text("0"), 0, kMaxDigits);
    ExprId fraction = pool.concat(pool.text("."), pool.repeat(any, 1, kMaxDigits));
    ExprId whole = pool.choice(pool.text("0"), pool.concat(nonzero, pool.repeat(any, 0, kMaxDigits - 1)));
    ExprId more = pool.repeat(any, 0, kMaxDigits);
    ExprId no_fraction = pool.optional(pool.concat({pool.text("."), pool.text("0"), zeros}));

    explicit Digits(ExprPool& p) : pool(p) {}

    ExprId set(char from, char to) {
        if (from > to) return kNoMatch;
        ByteSet s;
        s.add(static_cast<unsigned char>(from), static_cast<unsigned char>(to));
        return pool.bytes(s);
    }
    /// Texts of the length of `digits` that are above (or below) it.
    std::vector<ExprId> beside(const std::string& digits, bool above, char lowest, ExprId tail, bool same_length) {
        std::vector<ExprId> ways;
        for (size_t k = 0; k < digits.size(); ++k) {
            const char low = k == 0 ? lowest : '0';
            const ExprId digit =
                above ? set(static_cast<char>(digits[k] + 1), '9') : set(low, static_cast<char>(digits[k] - 1));
            const uint32_t n_rest = static_cast<uint32_t>(digits.size() - k - 1);
            const ExprId rest = same_length ? pool.repeat(any, n_rest, n_rest) : more;
            ways.push_back(pool.concat({pool.text(std::string_view(digits).substr(0, k)), digit, rest, tail}));
        }
        return ways;
    }
    ExprId not_below(const std::string& whole_digits, const std::string& part, bool open) {
        const ExprId tail = pool.optional(fraction);
        const uint32_t n = static_cast<uint32_t>(whole_digits.size());
        std::vector<ExprId> ways = beside(whole_digits, true, '0', tail, true);
        if (n < kMaxDigits) ways.push_back(pool.concat({nonzero, pool.repeat(any, n, kMaxDigits - 1), tail}));
        const ExprId positive = pool.concat({zeros, nonzero, more});
        ExprId equal = kNoMatch;
        if (part.empty()) {
            equal = open ? pool.concat(pool.text("."), positive) : tail;
        } else {
            std::vector<ExprId> after = beside(part, true, '0', kEmptyText, false);
            after.push_back(pool.concat(pool.text(part), open ? positive : more));
            equal = pool.concat(pool.text("."), pool.choice(std::move(after)));
        }
        ways.push_back(pool.concat(pool.text(whole_digits), equal));
        return pool.choice(std::move(ways));
    }
    ExprId not_above(const std::string& whole_digits, const std::string& part, bool open) {
        const ExprId tail = pool.optional(fraction);
        const uint32_t n = static_cast<uint32_t>(whole_digits.size());
        std::vector<ExprId> ways = beside(whole_digits, false, n > 1 ? '1' : '0', tail, true);
        if (n > 1) ways.push_back(pool.concat(any, tail));
        if (n > 2) ways.push_back(pool.concat({nonzero, pool.repeat(any, 1, n - 2), tail}));
        std::vector<ExprId> equal;
        if (part.empty()) {
            if (!open) equal.push_back(no_fraction);
        } else {
            equal.push_back(kEmptyText);
            std::vector<ExprId> after = beside(part, false, '0', kEmptyText, false);
            for (size_t k = 1; k < part.size(); ++k) after.push_back(pool.text(std::string_view(part).substr(0, k)));
            if (!open) after.push_back(pool.concat(pool.text(part), zeros));
            equal.push_back(pool.concat(pool.text("."), pool.choice(std::move(after))));
        }
        ways.push_back(pool.concat(pool.text(whole_digits), pool.choice(std::move(equal))));
        return pool.choice(std::move(ways));
    }
};

uint32_t power10(uint32_t n) {
    uint32_t p = 1;
    while (n-- > 0) p *= 10;
    return p;
}

/// Magnitudes that are a multiple of m * 10^-scale.
ExprId multiple_expr(Digits& d, uint32_t m, uint32_t scale) {
    ExprPool& pool = d.pool;
    std::vector<ExprId> ways;
    for (uint32_t n = 0; n <= scale; ++n) {
        // n digits after the point; what is missing to `scale` digits multiplies by ten.
        const uint32_t factor = power10(scale - n);
        const uint32_t modulus = m / std::gcd(m, factor);
        const ExprId digits = pool.multiple(modulus, 0);
        const ExprId shape = n == 0 ? d.whole : pool.concat({d.whole, pool.text("."), pool.repeat(d.any, n, n)});
        const ExprId fits = modulus == 1 ? shape : pool.both(digits, shape);
        ways.push_back(pool.concat(fits, n == 0 ? d.no_fraction : d.zeros));
    }
    return pool.choice(std::move(ways));
}

}  // namespace json_number_impl

bool Decimal::parse(std::string_view text, Decimal& out) {
    out = Decimal();
    size_t i = 0;
    if (i < text.size() && text[i] == '-') {
        out.negative = true;
        ++i;
    }
    int64_t exponent = 0;
    bool point = false;
    for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
        if (text[i] == '.') {
            point = true;
            continue;
        }
        out.digits += text[i];
        exponent += point ? 0 : 1;
    }
    if (i < text.size()) {
        ++i;
        const bool negative = i < text.size() && text[i] == '-';
        if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
        int64_t e = 0;
        for (; i < text.size() && e < 100000; ++i) e = e * 10 + (text[i] - '0');
        exponent += negative ? -e : e;
    }
    const size_t first = out.digits.find_first_not_of('0');
    if (first == std::string::npos) {
        out = Decimal();
        return true;
    }
    out.digits.erase(0, first);
    out.exponent = exponent - static_cast<int64_t>(first);
    out.digits.resize(out.digits.find_last_not_of('0') + 1);
    return out.exponent < 1000 && out.exponent > -1000 && out.digits.size() < 1000;
}

int Decimal::compare(const Decimal& a, const Decimal& b) {
    const int sign_a = a.is_zero() ? 0 : a.negative ? -1 : 1, sign_b = b.is_zero() ? 0 : b.negative ? -1 : 1;
    if (sign_a != sign_b) return sign_a < sign_b ? -1 : 1;
    if (sign_a == 0) return 0;
    const int larger = sign_a;  // the order of magnitudes turns around below zero
    if (a.exponent != b.exponent) return a.exponent < b.exponent ? -larger : larger;
    const int order = a.digits.compare(b.digits);
    return order == 0 ? 0 : order < 0 ? -larger : larger;
}

std::string Decimal::whole() const {
    if (is_zero() || exponent <= 0) return "0";
    std::string out = digits.substr(0, static_cast<size_t>(exponent));
    out.resize(static_cast<size_t>(exponent), '0');
    return out;
}

std::string Decimal::fraction() const {
    if (is_integer()) return {};
    if (exponent >= 0) return digits.substr(static_cast<size_t>(exponent));
    return std::string(static_cast<size_t>(-exponent), '0') + digits;
}

void NumberFacts::not_below(const Decimal& d, bool open) {
    const int order = has_low ? Decimal::compare(d, low) : 1;
    if (order > 0 || (order == 0 && open)) {
        low = d;
        low_open = open;
    }
    has_low = true;
}

void NumberFacts::not_above(const Decimal& d, bool open) {
    const int order = has_high ? Decimal::compare(d, high) : -1;
    if (order < 0 || (order == 0 && open)) {
        high = d;
        high_open = open;
    }
    has_high = true;
}

bool NumberFacts::is_multiple(const Decimal& d, const Decimal& of) const {
    // Long division of the digits, both scaled to integers.
    const size_t scale = std::max(d.fraction().size(), of.fraction().size());
    const auto scaled = [scale](const Decimal& x) {
        std::string s = x.whole() + x.fraction();
        s.append(scale - x.fraction().size(), '0');
        return s;
    };
    uint64_t divisor = 0, rest = 0;
    for (const char c : scaled(of)) {
        if (divisor > UINT64_MAX / 200) return false;
        divisor = divisor * 10 + static_cast<uint64_t>(c - '0');
    }
    if (divisor == 0) return false;
    for (const char c : scaled(d)) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % divisor;
    return rest == 0;
}

bool NumberFacts::holds(const Decimal& d) const {
    if (has_low && Decimal::compare(d, low) < (low_open ? 1 : 0)) return false;
    if (has_high && Decimal::compare(d, high) > (high_open ? -1 : 0)) return false;
    for (const Decimal& m : multiples)
        if (!is_multiple(d, m)) return false;
    for (const Decimal& m : not_multiples)
        if (is_multiple(d, m)) return false;
    for (const Decimal& x : excluded)
        if (d == x) return false;
    return true;
}

ExprId number_literal(ExprPool& pool, const Decimal& d) {
    json_number_impl::Digits digits(pool);
    const std::string part = d.fraction();
    const ExprId text = pool.text((d.negative ? "-" : "") + d.whole() + (part.empty() ? "" : "." + part));
    return pool.concat(text, part.empty() ? digits.no_fraction : digits.zeros);
}

namespace json_number_impl {

/// Numbers with an exponent that are certainly within the bounds. No exponent leads beyond the range of a double, where
/// readers fail, or round to zero.
ExprId exponent_expr(Digits& d, const NumberFacts& f) {
    ExprPool& pool = d.pool;
    if (!f.others || !f.multiples.empty() || !f.not_multiples.empty() || !f.excluded.empty()) return kNoMatch;
    const ExprId e = pool.choice(pool.text("e"), pool.text("E"));
    const ExprId minus = pool.text("-"), plus = pool.optional(pool.text("+"));
    const ExprId hundreds = pool.choice(pool.concat({d.set('0', '1'), d.any, d.any}),
                                        pool.concat({pool.text("2"), d.set('0', '5'), d.any}));
    if (f.integers && !f.has_low && !f.has_high) {
        const ExprId mantissa = pool.concat({pool.optional(minus), d.whole, pool.optional(d.fraction)});
        const ExprId sign = pool.optional(pool.choice(pool.text("+"), minus));
        return pool.concat({mantissa, e, sign, pool.choice(hundreds, pool.repeat(d.any, 1, 2))});
    }
    Decimal one, large;
    one.digits = large.digits = "1";
    one.exponent = 1;
    large.exponent = 17;
    Decimal minus_one = one, small = large;
    minus_one.negative = small.negative = true;
    const ExprId mantissa = pool.concat(d.nonzero, pool.optional(d.fraction));
    const ExprId not_zero =
        pool.both(pool.choice(hundreds, pool.repeat(d.any, 1, 2)), pool.except(pool.repeat(pool.text("0"), 0, 3)));
    // Below 1, and never whole; from 10^16 on, and perhaps whole.
    const ExprId tiny = pool.concat({mantissa, e, minus, not_zero});
    const ExprId two_digits =
        pool.choice(pool.concat(d.set('2', '9'), d.any), pool.concat(pool.text("1"), d.set('6', '9')));
    const ExprId three_digits = pool.both(hundreds, pool.except(pool.concat({pool.text("0"), d.any, d.any})));
    const ExprId huge = pool.concat({mantissa, e, plus, pool.choice(two_digits, three_digits)});
    std::vector<ExprId> ways;
    const auto above = [&f](const Decimal& x) { return f.has_low && Decimal::compare(f.low, x) >= 0; };
    const auto below = [&f](const Decimal& x) { return f.has_high && Decimal::compare(f.high, x) <= 0; };
    const bool low_up_to_zero = !f.has_low || Decimal::compare(f.low, Decimal()) <= 0;
    const bool high_from_zero = !f.has_high || Decimal::compare(f.high, Decimal()) >= 0;
    if (low_up_to_zero && (!f.has_high || Decimal::compare(f.high, one) >= 0)) ways.push_back(tiny);
    if (high_from_zero && (!f.has_low || Decimal::compare(f.low, minus_one) <= 0))
        ways.push_back(pool.concat(minus, tiny));
    if (f.integers && !f.has_high && !above(large)) ways.push_back(huge);
    if (f.integers && !f.has_low && !below(small)) ways.push_back(pool.concat(minus, huge));
    return pool.choice(std::move(ways));
}

/// Magnitudes of the numbers on one side of zero.
ExprId side_expr(Digits& d, const NumberFacts& f, bool negative) {
    ExprPool& pool = d.pool;
    const bool has_near = negative ? f.has_high : f.has_low, has_far = negative ? f.has_low : f.has_high;
    const Decimal &near_bound = negative ? f.high : f.low, &far_bound = negative ? f.low : f.high;
    const bool near_open = negative ? f.high_open : f.low_open, far_open = negative ? f.low_open : f.high_open;
    // On this side of zero: `near_bound` bounds the magnitude from below, `far_bound` from above.
    std::vector<ExprId> parts{pool.concat(d.whole, f.others          ? pool.optional(d.fraction)
                                                   : f.bare_integers ? kEmptyText
                                                                     : d.no_fraction)};
    if (f.others && !f.integers) parts.push_back(pool.except(pool.concat(d.whole, d.no_fraction)));
    if (has_far) {
        if (!far_bound.is_zero() && far_bound.negative != negative) return kNoMatch;
        if (far_bound.is_zero() && (far_open || negative)) return kNoMatch;
        parts.push_back(d.not_above(far_bound.whole(), far_bound.fraction(), far_open));
    }
    if (has_near && (near_bound.is_zero() || near_bound.negative == negative)) {
        if (!near_bound.is_zero() || near_open)
            parts.push_back(d.not_below(near_bound.whole(), near_bound.fraction(), near_open));
    }
    for (const auto* list : {&f.multiples, &f.not_multiples})
        for (const Decimal& m : *list) {
            const std::string digits = m.whole() + m.fraction();
            uint32_t value = 0;
            for (const char c : digits) value = value * 10 + static_cast<uint32_t>(c - '0');
            const ExprId fits = multiple_expr(d, value, static_cast<uint32_t>(m.fraction().size()));
            parts.push_back(list == &f.multiples ? fits : pool.except(fits));
        }
    for (const Decimal& x : f.excluded)
        if (x.is_zero() || x.negative == negative) {
            Decimal magnitude = x;
            magnitude.negative = false;
            parts.push_back(pool.except(number_literal(pool, magnitude)));
        }
    return parts.size() == 1 ? parts[0] : pool.both(std::move(parts));
}

}  // namespace json_number_impl

Result<ExprId> number_expr(ExprPool& pool, const NumberFacts& f) {
    using namespace json_number_impl;
    if (!f.integers && !f.others) return kNoMatch;
    for (const Decimal* bound : {f.has_low ? &f.low : nullptr, f.has_high ? &f.high : nullptr}) {
        if (!bound) continue;
        if (bound->whole().size() >= kMaxDigits || bound->fraction().size() >= kMaxDigits)
            return fail(Code::unsupported, "a bound has more than ", kMaxDigits - 1, " digits");
    }
    for (const auto* list : {&f.multiples, &f.not_multiples})
        for (const Decimal& m : *list) {
            if (m.is_zero() || m.negative) return fail(Code::bad_argument, "a multipleOf is not above zero");
            const std::string digits = m.whole() + m.fraction();
            if (digits.size() - digits.find_first_not_of('0') > kMaxModulusDigits)
                return fail(Code::unsupported, "a multipleOf has more than ", kMaxModulusDigits, " digits");
            if (m.fraction().size() > kMaxModulusDecimals)
                return fail(Code::unsupported, "a multipleOf has more than ", kMaxModulusDecimals, " decimals");
        }
    Digits d(pool);
    const ExprId negative = side_expr(d, f, true);
    return pool.choice({side_expr(d, f, false), pool.concat(pool.text("-"), negative), exponent_expr(d, f)});
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
