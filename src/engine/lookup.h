// engine/lookup: drafts what followed the last tokens where they occurred before in the text.
//
// Owns    an index of the text: for each pair of neighbouring tokens the places where it occurs.
// Thread  belongs to one session.
// Tests   tests/test_lookup.cpp.
#pragma once
#include "draft.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Finds the longest earlier occurrence of the last tokens (of equally long ones the latest) and guesses what followed
/// it.
/// cost      a comparison for each earlier place of the last two tokens, at most kMaxPlaces; a few steps for each token
///           that is new.
class Lookup : public DraftSource {
  public:
    static constexpr size_t kSearched = size_t{1} << 18;  ///< the last tokens of the text, at most
    static constexpr uint32_t kMaxPlaces = 1024;          ///< the last ones where a pair occurs are looked at
    static constexpr uint32_t kMinMatch = 2;              ///< tokens that must agree
    static constexpr uint32_t kMaxMatch = 32;             ///< longer matches are not told apart

    /// Takes the memory for texts of so many tokens.
    explicit Lookup(size_t n_context = kSearched);
    static uint64_t memory_bytes(size_t n_context);
    Result<uint32_t> propose(const DraftRequest& request) override;
    uint32_t match_length() const override { return length_; }
    void replaced(size_t n_same) override;

  private:
    void add(Span<const Token> history);
    void remove_from(size_t place);
    uint16_t list_of(const Token* end) const;

    // A place is the number of tokens up to the end of a pair. The places of one pair are a list, the latest first;
    // pairs of one hash share a list. The ring holds the last places.
    std::vector<uint32_t> latest_;  ///< by list; 0: it is empty
    std::vector<uint32_t> before_;  ///< by place, in the ring: the place before it in its list, 0: none
    std::vector<uint16_t> list_;    ///< by place, in the ring
    size_t n_added_ = 0;            ///< places up to here are in
    size_t n_lost_ = 0;             ///< places up to here are no longer in the ring
    uint32_t length_ = 0;           ///< of the last match
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
