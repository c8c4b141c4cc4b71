// base/token_special: finds special tokens in text.
//
// Owns    an Aho-Corasick automaton over the special tokens of a vocabulary, built on their reversed bytes: one pass
//         from the end of the text to its front gives the longest special token that begins at each byte.
// Thread  immutable after build().
// Tests   tests/test_token.cpp
#pragma once
#include "base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class SpecialMatcher {
  public:
    struct Range {
        size_t from, to;
    };
    struct Match {
        size_t at;
        uint32_t id, length;
    };
    struct Word {
        std::string_view bytes;  ///< not empty
        uint32_t id;
        bool anywhere;  ///< found in any text; the others are found only inside a control range
    };

    /// Of equal words the one with the lowest id is found.
    /// cost      a sort of the words, then linear in their bytes; some 50 bytes of memory per byte.
    void build(const std::vector<Word>& words);

    /// The leftmost, then longest special tokens of `text`, without overlap, ascending. `control`: ascending ranges,
    /// disjoint; a word that is not `anywhere` must lie inside one of them.
    /// cost      linear in the text, whatever the words are. `n_step`, if given, counts automaton steps.
    std::vector<Match> find(std::string_view text, const std::vector<Range>& control, uint64_t* n_step) const;

  private:
    static constexpr uint32_t kNone = UINT32_MAX;
    /// A node stands for a reversed suffix of words. Children are consecutive and ascend by `byte`.
    struct Node {
        uint32_t first_child = 0, n_child = 0;
        uint32_t fail = 0;                    ///< the longest proper suffix that is a node too
        uint32_t id = kNone, id_any = kNone;  ///< words that end here: any kind, and `anywhere` only
        uint32_t out = 0, out_any = 0;        ///< nearest node with such a word, this one included; 0: none
        uint32_t depth = 0;
        uint8_t byte = 0;
    };
    uint32_t step(uint32_t node, uint8_t byte, uint64_t& n_step) const;
    uint32_t child(uint32_t node, uint8_t byte) const;

    std::vector<Node> nodes_;
    uint32_t root_child_[256] = {};  ///< 0: none
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
