// base/text_stream: the part of a growing text that can be shown.
//
// Owns    holding back incomplete characters and text that may begin a stop string.
// Thread  functions on the caller's strings.
// Tests   tests/test_token.cpp: the text shown does not depend on how it arrives in pieces
#pragma once
#include "unicode.h"

namespace auspex {
namespace detail {

/// Moves the complete characters at the front of `bytes` out. At most 3 bytes stay, those of a
/// character that may still become valid; `all` takes them too. Broken bytes become U+FFFD each.
std::string take_characters(std::string& bytes, bool all);

/// Moves text out of `held` that no stop string can claim any more; what stays is the longest end of
/// it that some stop string begins with (nothing with `all`). At the first complete stop string sets
/// *stopped, gives what stands before it and drops the rest; of two that end at one place the longer.
/// cost      linear in `held` plus the stop strings, for each stop string.
std::string take_unstopped(std::string& held, const std::vector<std::string>& stops, bool all, bool* stopped);

}  // namespace detail
}  // namespace auspex
