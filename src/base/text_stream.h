// base/text_stream: what may be shown of a text that is still growing.
//
// Owns    holding back the bytes of an unfinished character, and text that may begin a stop string.
// Thread  a StopFilter belongs to one stream; take_characters() works on the caller's string.
// Test    tests/test_token.cpp: the text shown does not depend on how it was cut.
#pragma once
#include "unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Moves the complete characters at the front of `bytes` out. At most 3 bytes stay, those of a character that may still
/// become valid; `all` takes them too. Each broken byte becomes U+FFFD.
std::string take_characters(std::string& bytes, bool all);

/// Finds stop strings in text that arrives in pieces, by the algorithm of Knuth, Morris and Pratt.
class StopFilter {
  public:
    /// Empty stop strings are ignored.
    explicit StopFilter(std::vector<std::string> stops = {});
    /// Appends `text` and returns what no stop string can begin in any more; what stays is the longest end that some
    /// stop string begins with. At the first complete stop string returns the text before it and drops the rest; of
    /// two that end at one place the longer counts.
    /// cost      linear in `text` for each stop string, over all calls together.
    std::string push(std::string_view text);
    /// The text that is still held, when no more follows.
    std::string finish();
    bool stopped() const { return found_ != kNone; }
    /// The stop string that ended the text; null: none did.
    const std::string* found() const { return stopped() ? &stops_[found_].text : nullptr; }
    /// Bytes held back.
    size_t n_held() const { return held_.size() - from_; }

  private:
    struct Stop {
        std::string text;
        std::vector<size_t> border;  ///< [i]: length of the longest border of the first i + 1 bytes
        size_t n_match = 0;          ///< bytes of the stop string that the text so far ends with
    };
    static constexpr size_t kNone = SIZE_MAX;
    std::vector<Stop> stops_;
    std::string held_;  ///< from from_ on: not returned yet
    size_t from_ = 0;
    size_t found_ = kNone;  ///< of stops_
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
