// base/unicode: UTF-8 and the classes of code points.
//
// Owns    strict decoding, repair of invalid bytes, and the classes and white space of Unicode 15.1. The table is
//         unicode_table.inc, which tools/make_unicode.py writes.
// Thread  pure functions.
// Tests   tests/test_token.cpp
#pragma once
#include "base.h"

#include <algorithm>
#include <iterator>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

namespace unicode_impl {
#include "unicode_table.inc"
}  // namespace unicode_impl

/// The first letter of the general category: L, N, M, P, S, or C and Z as `other`.
enum class CharClass : uint8_t { other = 0, letter = 1, number = 2, mark = 3, punctuation = 4, symbol = 5 };

inline CharClass char_class(uint32_t c) {
    using namespace unicode_impl;
    if (c < 0x80) return static_cast<CharClass>(kUnicodeAscii[c] - '0');
    const bool beyond = c > 0xFFFF;
    const uint32_t* first = kUnicodeRuns + kUnicodeBlocks[beyond ? 0x100 : c >> 8];
    const uint32_t* last = beyond ? std::end(kUnicodeRuns) : kUnicodeRuns + kUnicodeBlocks[(c >> 8) + 1];
    return static_cast<CharClass>(std::upper_bound(first, last, c << 3 | 7)[-1] & 7);
}

/// Calls f(first, last) for each run of code points of a class, in order. The last run of the table is of `other`.
template <class F>
void for_each_run(CharClass wanted, F f) {
    using namespace unicode_impl;
    for (size_t i = 0; i + 1 < std::size(kUnicodeRuns); ++i)
        if (static_cast<CharClass>(kUnicodeRuns[i] & 7) == wanted)
            f(kUnicodeRuns[i] >> 3, (kUnicodeRuns[i + 1] >> 3) - 1);
}

/// The 25 code points of the property White_Space: what \s means in a tokenizer's pattern.
inline bool is_white_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/// What Python's str.strip() removes: white space and the four separators U+001C..U+001F.
inline bool is_python_space(uint32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

/// The first code point of [p, p + n), n > 0, and its length in bytes. A byte that does not begin a valid sequence
/// gives kBadCodePoint and length 1: overlong forms, surrogates, values above U+10FFFF, continuation bytes missing or
/// alone.
constexpr uint32_t kBadCodePoint = 0xFFFFFFFF;
inline uint32_t decode_utf8(const char* p, size_t n, size_t* length) {
    const auto at = [p](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
    const uint32_t a = at(0);
    *length = 1;
    if (a < 0x80) return a;
    if (a < 0xC2 || a > 0xF4) return kBadCodePoint;
    const size_t want = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    if (n < want) return kBadCodePoint;
    const uint32_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    const uint32_t high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    if (at(1) < low || at(1) > high) return kBadCodePoint;
    uint32_t c = (a & (0xFFu >> (want + 1))) << 6 | (at(1) & 0x3F);
    for (size_t i = 2; i < want; ++i) {
        if ((at(i) & 0xC0) != 0x80) return kBadCodePoint;
        c = c << 6 | (at(i) & 0x3F);
    }
    *length = want;
    return c;
}

/// True if [p, p + n) is a proper prefix of a valid character.
inline bool is_utf8_prefix(const char* p, size_t n) {
    const auto at = [p](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
    if (n == 0) return false;
    const uint32_t a = at(0);
    if (a < 0xC2 || a > 0xF4) return false;
    if (n >= (a < 0xE0 ? 2u : a < 0xF0 ? 3u : 4u)) return false;
    if (n >= 2) {
        const uint32_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
        const uint32_t high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
        if (at(1) < low || at(1) > high) return false;
    }
    return n < 3 || (at(2) & 0xC0) == 0x80;
}

/// Appends c in UTF-8; a surrogate or a value above U+10FFFF becomes U+FFFD.
inline void append_utf8(std::string& to, uint32_t c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
    const auto put = [&to](uint32_t byte) { to += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | c >> 6);
        put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | c >> 12);
        put(0x80 | (c >> 6 & 0x3F));
        put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | c >> 18);
        put(0x80 | (c >> 12 & 0x3F));
        put(0x80 | (c >> 6 & 0x3F));
        put(0x80 | (c & 0x3F));
    }
}

/// The offset of the first invalid byte, or the size of the text.
inline size_t find_bad_utf8(std::string_view text) {
    size_t i = 0, n = 0;
    while (i < text.size()) {
        if (decode_utf8(text.data() + i, text.size() - i, &n) == kBadCodePoint) break;
        i += n;
    }
    return i;
}

/// Appends `text`, every invalid byte replaced by U+FFFD.
inline void append_repaired(std::string& to, std::string_view text) {
    while (!text.empty()) {
        const size_t good = find_bad_utf8(text);
        to.append(text.substr(0, good));
        if (good == text.size()) return;
        append_utf8(to, 0xFFFD);
        text.remove_prefix(good + 1);
    }
}

/// Python's str.strip().
inline std::string_view trim_space(std::string_view text) {
    size_t n = 0;
    while (!text.empty() && is_python_space(decode_utf8(text.data(), text.size(), &n))) text.remove_prefix(n);
    while (!text.empty()) {
        size_t at = text.size() - 1;
        while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (n != text.size() - at || !is_python_space(c)) break;
        text.remove_suffix(n);
    }
    return text;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
