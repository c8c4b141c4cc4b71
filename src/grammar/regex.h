// grammar/regex: regular expressions in the syntax of JSON Schema patterns (ECMA-262), as expressions over bytes.
//
// Owns    the parser. Supported: alternatives, groups, classes, \d \w \s and \p{} of L, N, M, P, S, counted repetition
//         (greedy and lazy match the same texts), ^ and $ at the ends. Refused with a reason: look-around, back
//         references, \b, flags.
// Thread  no shared state.
// Tests   tests/test_grammar.cpp
#pragma once
#include "char_set.h"
#include "grammar.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// How much of a text a pattern describes.
enum class Extent {
    whole,   ///< all of it
    search,  ///< some part of it, unless ^ and $ say more
};

/// The texts that match.
///
/// errors    bad_argument: not a regular expression; unsupported: one with a feature that is left out. The text names
///           the byte of the pattern.
Result<ExprId> compile_regex(ExprPool& pool, std::string_view pattern, Extent extent, Writing writing);

/// The grammar of all texts that match as a whole.
Result<std::shared_ptr<const Rules>> rules_from_regex(std::string_view pattern);
/// A grammar in GBNF; the start rule is `root`.
///
/// errors    bad_argument, unsupported: the text names the line.
Result<std::shared_ptr<const Rules>> rules_from_gbnf(std::string_view text);

constexpr size_t kMaxGrammarBytes = size_t{1} << 20;
constexpr size_t kMaxGrammarDepth = 100;  ///< of groups
constexpr uint32_t kMaxRepeat = 1000000;

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
