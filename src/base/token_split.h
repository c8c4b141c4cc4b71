// base/token_split: cuts text into the pieces that byte pairs are merged within.
//
// Owns    the two pre-tokenizers, qwen2 and qwen35, as one scanner without regular expressions.
// Reads   unicode.
// Serves  token.
// Thread  none of its own; pure functions.
// Laws    pieces cover the text, linear time: tests/test_token.cpp.
#pragma once
#include "unicode.h"

namespace auspex {
namespace detail {

enum class Split : uint8_t { qwen2, qwen35 };

/// The end of the piece that begins at text[at], at < text.size(); always beyond `at`. The text is
/// valid UTF-8 (a broken byte counts as a character of its own).
///
/// The scanner takes what the first matching alternative of the published pattern takes, \w being
/// \p{L} for qwen2 and [\p{L}\p{M}] for qwen35:
///   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\w+ | \p{N} | ?[^\s\w\p{N}]+[\r\n]*
///   | \s*[\r\n]+ | \s+(?!\S) | \s+
/// `n_look`  when given, counts the characters looked at.
/// cost      over a whole text, each character is looked at a bounded number of times.
size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look = nullptr);

}  // namespace detail
}  // namespace auspex
