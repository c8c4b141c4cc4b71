// base/text_stream: what may be shown of a text that is still growing.
//
// Owns    holding back the bytes of an unfinished character, and text that may begin a stop string.
// Reads   unicode.
// Serves  the door's TextStream (engine/text_stream.cpp).
// Thread  none of its own; functions on the caller's strings.
// Laws    the text shown does not depend on how it was cut: tests/test_token.cpp.
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
