// base/token_split: the pre-tokenizer, which splits text into the pieces that BPE merges within.
//
// Owns    the splitting rules qwen2, qwen35 and deepseek-v3, as one scanner without regular expressions.
// Thread  pure functions.
// Tests   tests/test_token.cpp: pieces cover the text, linear time
#pragma once
#include "unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

enum class Split : uint8_t { qwen2, qwen35, deepseek_v3 };

/// The end of the piece that begins at text[at], at < text.size(); greater than `at`. Pieces are taken from the front
/// of the text on. The text is valid UTF-8; an invalid byte counts as one character of no class.
///
/// qwen2, qwen35: equivalent to the first matching alternative of the published pattern, where \w is \p{L} for qwen2
/// and [\p{L}\p{M}] for qwen35:
///   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\w+ | \p{N} | ?[^\s\w\p{N}]+[\r\n]*
///   | \s*[\r\n]+ | \s+(?!\S) | \s+
///
/// deepseek-v3: equivalent to three published splits, one after the other. Each splits the pieces of the one before
/// into its matches and what lies between them, and takes the end of such a piece for the end of the text:
///   \p{N}{1,3}
///   [\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+
///   [!-/:-@\[-`{-~][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]*
///   | \s*[\r\n]+ | \s+(?!\S) | \s+
/// n_look    if given, is increased by the characters looked at.
/// cost      linear over a whole text.
size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look = nullptr);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
