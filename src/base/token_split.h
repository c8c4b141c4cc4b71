// base/token_split: the pre-tokenizer, which splits text into the pieces that BPE merges within.
//
// Owns    the splitting rules qwen2 and qwen35, as one scanner without regular expressions.
// Thread  pure functions.
// Tests   tests/test_token.cpp: pieces cover the text, linear time
#pragma once
#include "unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

enum class Split : uint8_t { qwen2, qwen35 };

/// The end of the piece that begins at text[at], at < text.size(); greater than `at`. The text is valid UTF-8; an
/// invalid byte counts as one character.
///
/// Equivalent to the first matching alternative of the published pattern, where \w is \p{L} for qwen2 and
/// [\p{L}\p{M}] for qwen35:
///   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\w+ | \p{N} | ?[^\s\w\p{N}]+[\r\n]*
///   | \s*[\r\n]+ | \s+(?!\S) | \s+
/// n_look    if given, is increased by the characters looked at.
/// cost      linear over a whole text.
size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look = nullptr);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
